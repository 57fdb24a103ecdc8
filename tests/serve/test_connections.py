"""Who is let in, and for how long: names, origins, headers that no form sends, slow clients, many
of them, and the end of a server."""

import contextlib
import http.client
import json
import re
import signal
import socket
import threading
import time

import httpx
from serving import JSON, TSV, head, raw_socket, started, until, v1  # noqa: F401  (a fixture)
from test_command import SOURCE

BODY = {"source": SOURCE}


def test_more_names_are_allowed_by_a_flag_and_keys_guard_any(serving, tmp_path):
    with serving(allowed_hosts=("mt.example",)) as client:
        assert (
            client.get(
                "/health", headers={"Host": "mt.example:443", "Origin": "https://mt.example"}
            ).status_code
            == 200
        )
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
    (tmp_path / "keys").write_text("0" * 64 + "\n", encoding="utf-8")
    with serving(api_keys=str(tmp_path / "keys")) as client:
        assert (
            client.get("/health", headers={"Host": "any.example", "Origin": "null"}).status_code
            == 200
        )


def test_headers_that_no_form_sends_allow_changes(client):
    path, curl = "/v1/glossaries/formed", {"X-Requested-With": "curl"}
    assert client.put(path, content=b"Ja\tyes\n", headers=curl).status_code == 201
    assert client.delete(path, headers=TSV).status_code == 204


def test_a_client_that_hangs_up_inside_its_body_is_cancelled_and_no_fault(client, caplog):
    def counted(status: int) -> float:
        return sum(
            map(
                float,
                re.findall(
                    rf'requests_total{{.*status="{status}"}} (\S+)', client.get("/metrics").text
                ),
            )
        )

    gone, faults = counted(499), counted(500)
    for path in ("/v1/translate", "/v1/translate/stream", "/translate"):
        with raw_socket(client) as sock:
            sock.sendall(head(path, b"x" * 1000) + b"{")
            time.sleep(0.05)
    with raw_socket(client) as sock:
        sock.sendall(head("/v1/glossaries/x", b"x" * 1000).replace(b"POST", b"PUT") + b"a\t")
        time.sleep(0.05)
    assert until(lambda: counted(499) == gone + 4) and counted(500) == faults
    assert "Traceback" not in caplog.text


def test_keys_are_read_before_the_body(serving, tmp_path):
    (tmp_path / "keys").write_text("0" * 64 + "\n", encoding="utf-8")
    with serving(api_keys=str(tmp_path / "keys")) as client:
        for path in ("/v1/translate", "/v1/translate/stream", "/translate"):
            with raw_socket(client) as sock:
                # and no body
                sock.sendall(
                    head(path, b"x" * 1000).replace(b"\r\n\r\n", b"\r\nX-API-Key: wrong\r\n\r\n")
                )
                assert sock.recv(1000).startswith(b"HTTP/1.1 403 ")


def test_slow_clients_get_an_error_and_are_disconnected(serving):
    with serving(read_timeout=0.3) as client:
        with raw_socket(client) as sock:
            sock.sendall(head("/v1/translate", b"x" * 1000) + b"{")
            answer = sock.recv(1000)
            assert answer.startswith(
                b"HTTP/1.1 408 "
            ) and b"the body has not come within 0.3 seconds" in answer + sock.recv(1000)
        for sent in (b"", b"GET /health HTTP/1.1\r\nHost: local"):
            with raw_socket(client) as sock:
                sock.sendall(sent)
                answer = b"".join(iter(lambda: sock.recv(1000), b""))  # until it is closed
                assert (
                    answer.startswith(b"HTTP/1.1 408 ")
                    and b"the request has not come within 0.3 seconds" in answer
                )
        with raw_socket(client) as sock:  # the second request of a connection, too
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")
            sock.sendall(b"GET /hea")
            assert b"HTTP/1.1 408 " in b"".join(iter(lambda: sock.recv(1000), b""))


def test_connections_that_send_nothing_make_room(serving):
    with serving(max_connections=4) as client:
        held = [raw_socket(client) for _ in range(12)]
        for sock in held:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: local")
        assert v1(client, BODY).json()["text"]
        # all places are taken by requests whose body is still to come
        working = [raw_socket(client) for _ in range(4)]
        for sock in working:
            sock.sendall(head("/v1/translate", b"x" * 1000) + b"{")
        time.sleep(0.1)
        with raw_socket(client) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 503 ")
        for sock in held + working:
            sock.close()
        assert until(lambda: client.get("/health").status_code == 200)


def test_a_header_is_not_kept_without_a_limit(client):
    """Neither that of a first request, nor of one behind another, nor what follows a body in
    pieces; without a key."""
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    chunked = head("/v1/translate", b"").replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked"
    )
    line = b"X-Many: " + b"x" * 1000 + b"\r\n"
    for begin in (get, get + b"\r\n" + get, chunked + b"1\r\n{\r\n0\r\n", get + b"X-Long: "):
        with raw_socket(client) as sock:
            sock.sendall(begin)
            sent = 0
            with contextlib.suppress(OSError):  # it is closed
                while sent < 10 << 20:
                    sock.sendall(line if begin[-2:] == b"\r\n" else line[8:-2])
                    sent += len(line)
            assert sent < 10 << 20
    for end in (b"", b"\r\n"):
        with raw_socket(client) as sock:
            sock.sendall(get + line * 70 + end)
            assert sock.recv(1000).startswith(b"HTTP/1.1 431 ")
    assert client.get("/health", headers={"X-Some": "x" * 60000}).status_code == 200


def test_clients_that_do_not_read_make_room(serving):
    """Their answers are more than the buffers take."""
    with serving(max_connections=8, max_body=4 << 20) as client:
        body = json.dumps({"q": "x" * (3 << 20), "source": "de", "target": "de"}).encode()
        held = []
        for _ in range(8):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((client.base_url.host, client.base_url.port))
            sock.sendall((head("/translate", body) + body) * 3)
            held.append(sock)
        assert until(lambda: answers_health(client), 30)
        for sock in held:
            sock.close()


def answers_health(client: httpx.Client) -> bool:
    try:
        return client.get("/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_a_client_that_sends_too_much_at_once_is_closed(client):
    get = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    size = len(client.get("/openapi.json").content)
    with raw_socket(client) as sock, contextlib.suppress(OSError):
        sock.sendall(get * 5000)
        read = b"".join(iter(lambda: sock.recv(1 << 20), b""))
        assert len(read) < 5000 * size


def test_the_limits_as_they_are_typed(started):  # noqa: F811
    flags = [
        "--allowed-hosts",
        "mt.example, b.example",
        "--read-timeout",
        "3",
        "--keep-alive",
        "1",
        "--max-connections",
        "2",
    ]
    _, url, _ = started(*flags)
    host, port = url.removeprefix("http://").split(":")
    unfinished, idle, third = (
        socket.create_connection((host, int(port)), timeout=60) for _ in range(3)
    )
    assert unfinished.recv(1000) == b"", (
        "the third connection takes the place of the one that has waited longest"
    )
    begun = time.monotonic()
    idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert idle.recv(1000).startswith(b"HTTP/1.1 200 ")
    third.sendall(b"GET /health HTTP/1.1\r\n")
    assert third.recv(1000).startswith(b"HTTP/1.1 408 ")
    while idle.recv(1000):
        pass
    assert 0.9 < time.monotonic() - begun < 30
    statuses = [
        httpx.get(f"{url}/health", headers={"Host": name}).status_code
        for name in ("mt.example", "b.example", "evil.example")
    ]
    assert statuses == [200, 200, 403]


def test_few_open_files_are_enough_and_no_request_is_lost_at_the_end(
    started,  # noqa: F811
    monkeypatch,
):
    """300 unfinished headers lock no one out; at SIGTERM every request on a connection that
    is kept gets an answer."""
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, files[1]))
    try:
        process, url, _ = started()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    host, port = url.removeprefix("http://").split(":")
    held = [socket.create_connection((host, int(port))) for _ in range(300)]
    for sock in held:
        sock.sendall(b"POST /v1/translate HTTP/1.1\r\nHost: local")
    assert httpx.post(f"{url}/v1/translate", json=BODY, timeout=60).json()["text"]
    for sock in held:
        sock.close()
    statuses: list[int] = []
    failures: list[Exception] = []

    def query() -> None:
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            closes = False
            while not closes:
                connection.request("POST", "/v1/translate", b'{"source": "Ja."}', JSON)
                response = connection.getresponse()
                closes = response.getheader("Connection") == "close"
                response.read()
                statuses.append(response.status)
                time.sleep(0.05)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=query) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert until(lambda: len(statuses) > 100 or failures)
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(60)
    assert not failures and set(statuses) <= {200, 503}, (failures, set(statuses))
    assert process.wait(60) == 0
