"""The command: what it says, what it refuses, and how it ends."""

import contextlib
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import warm
from forked import forked
from libretranslatepy import LibreTranslateAPI
from serving import FLAGS, ROOT, TSV, started, until, v1  # noqa: F401  (a fixture)
from sizes import drawn

from fairseq_ext.serve.__main__ import main

NEEDED = ["--path", FLAGS["path"], "--data", FLAGS["data"], "-s", "de", "-t", "en", "--cpu"]
SOURCE = "Der Patient hat einen Port."


def test_it_says_where_it_listens_and_ends_at_sigterm_when_what_runs_is_answered(
    started,  # noqa: F811
    tmp_path,
):
    flags = "--beam 4 --stop optimal --unnormalized --grace 60 --max-line-tokens 60"
    glossaries = f"--glossary-folder {tmp_path} --glossary-match casefold --glossary-repeat each"
    process, url, said = started(*flags.split(), *glossaries.split())
    assert "; no --api-keys, so this machine alone can reach it" in said
    assert re.search(r"ready: de to en, fairseq_ext:\S+stop:optimal", said)
    with httpx.Client(base_url=url, timeout=120) as client:
        one = v1(client, {"source": SOURCE}).json()
        assert one["certificate"] == {"proved": True, "gap": 0.0}
        long = {"source": "Ja , " * 60, "prefix": "Yes"}  # one sentence, as it must begin so
        assert "tokens and the limit is 60: " in v1(client, long).json()["error"]
        terms = b"patient\temployee\n"
        assert client.put("/v1/glossaries/clinic", content=terms, headers=TSV).status_code == 201
        for glossary in ("clinic", {"patient": "employee"}):
            record = {"source": "Der Patient sieht den Patient.", "glossary": glossary}
            twice = v1(client, record).json()
            assert twice["text"].count("employee") == 2 and "employee" not in one["text"], twice
    api = LibreTranslateAPI(url)  # its own client, unmodified
    assert api.translate(SOURCE, "de", "en") == one["text"] and [
        each["code"] for each in api.languages()
    ] == ["de", "en"]
    with httpx.Client(base_url=url, timeout=120) as client, ThreadPoolExecutor() as threads:
        answer = threads.submit(v1, client, [{"source": SOURCE}] * 60)
        assert until(lambda: answer.done() or not pending(url, 0))
        process.send_signal(signal.SIGTERM)
        assert answer.result().status_code == 200
    assert [each["text"] for each in answer.result().json()] == [one["text"]] * 60
    assert process.wait(60) == 0
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health")


def pending(url: str, count: int) -> bool:
    """Whether this number of requests is not answered, as the server says."""
    return f"\nfairseq_ext_pending {count}.0\n" in httpx.get(f"{url}/metrics", timeout=10).text


def children_of(pid: int) -> list[int]:
    """Process ids of what the threads of a process have started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@drawn(0)  # long
def test_stopped_workers_hold_neither_health_nor_the_end_of_the_server(started):  # noqa: F811
    process, url, _ = started("--cpu-workers", "2", "--beam", "1", "--grace", "1", cold=True)
    (fork_server,) = children_of(process.pid)
    assert until(lambda: len(children_of(fork_server)) == 2)
    for worker in children_of(fork_server):
        os.kill(worker, signal.SIGSTOP)

    def translate(_: int) -> None:
        with contextlib.suppress(httpx.TransportError):
            httpx.post(f"{url}/v1/translate", json={"source": SOURCE}, timeout=120)

    with ThreadPoolExecutor(60) as clients:  # more than workers take
        ended = clients.map(translate, range(60))
        assert until(lambda: pending(url, 60))
        assert httpx.get(f"{url}/health", timeout=5).json() == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert len(list(ended)) == 60
    assert not Path(f"/proc/{fork_server}").exists()


ORIGIN = "--allowed-origins must be * or scheme://host[:port], such as"
NO_KEY = "--api-keys {0}/empty has no key: make one with python -m fairseq_ext.serve.guard NAME"
ONE = "--models {0}/models"  # with the folder de-en alone, which has no model
REFUSED = {
    "--host 0.0.0.0": "--host 0.0.0.0 opens the server to others and no keys are given: add",
    "--api-keys {0}/keys": "line 1 of {0}/keys does not begin with the SHA-256 of a key",
    "--api-keys {0}/empty": NO_KEY,
    "--api-keys {0}/none": "--api-keys: cannot read",
    "--host 1.2.3.4 --api-keys x": "--api-keys: cannot read x",
    "--deadline 0": "--deadline 0 allows nothing: use a number above 0",
    "--read-timeout nan": "--read-timeout nan allows nothing: use a number above 0",
    "--max-connections 0": "--max-connections 0 allows nothing: use a number above 0",
    "--keep-alive -1": "--keep-alive -1 allows nothing: use a number above 0",
    "--grace -1": "--grace (seconds) must be 0 or more, not -1",
    "5": "'5' belongs to no flag: write a flag before its value",
    "--pivot en": "--pivot belongs to --models, which is not given: add it, or leave --pivot out",
    "--allowed-origins nonsense": ORIGIN,
    "--allowed-origins *,https://a.org/b": ORIGIN,
    "--models x": "--data and --models both name what is served",
}
# without a model's flags
REFUSED_ALONE = {
    "": "no model is named: add --data",
    ONE: "{0}/models/de-en has no checkpoint (*.pt): name one by --path",
    f"{ONE} -s de": "--models finds each model's --source-lang in its folder: leave it out",
    f"{ONE}/no": "--models: cannot read {0}/models/no (No such file or directory)",
    f"{ONE}/de-en": "--models {0}/models/de-en has no folder that is named as a pair of languages",
    f"{ONE} --max-models 0": "--max-models 0 allows nothing",
    f"{ONE} --max-models 1 --pivot en": "--pivot takes two models at once: allow --max-models 2",
    "--data {0}/models": "{0}/models has no checkpoint (*.pt): name one by --path",
}


def test_what_cannot_be_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "models" / "de-en").mkdir(parents=True)
    for name, content in (("keys", "secret\n"), ("empty", "# none\n")):
        (tmp_path / name).write_text(content, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        used = f"cannot listen on 127.0.0.1:{port} (Address already in use): choose another --host"
        for table, more in (({**REFUSED, f"--port {port}": used}, NEEDED), (REFUSED_ALONE, [])):
            for arguments, sentence in table.items():
                done = forked(main, "serve", *arguments.format(tmp_path).split(), *more)
                said = done.stderr.splitlines()[-1]
                expected = f"error: {sentence.format(tmp_path)}"
                assert done.status == 1 and said.startswith(expected), (arguments, done)


def test_a_port_that_is_taken_is_reported_before_a_worker_is_started(monkeypatch, capsys):
    monkeypatch.setattr(
        "fairseq_ext.serve.__main__.Engine", lambda **flags: pytest.fail("a worker was started")
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([*NEEDED, "--port", str(taken.getsockname()[1])]) == 1
    assert "error: cannot listen on 127.0.0.1:" in capsys.readouterr().err


@drawn(0)  # long
def test_a_server_whose_standard_output_is_closed_starts():
    words = [sys.executable, "-m", "fairseq_ext.serve", *NEEDED, "--port", "0"]
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stderr is not None
        said = [server.stderr.readline(), server.stderr.readline()]
        server.terminate()
        assert said[1].startswith("ready: ") and server.wait(60) == 0, said


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_sentence():
    done = forked(main, "serve", *NEEDED[2:], "--path", "/nowhere.pt", "--port", "0")
    assert done.status == 1 and "error: Model file not found: /nowhere.pt" in done.stderr


def test_a_key_is_made_with_the_line_for_its_file():
    command, environment = (
        [warm.python(), "-m", "fairseq_ext.serve.guard", "me"],
        {**os.environ, "PYTHONPATH": str(ROOT)},
    )
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    key, line = (text.split()[1:] for text in done.stdout.splitlines())
    assert line == [hashlib.sha256(key[0].encode()).hexdigest(), "me"] and len(key[0]) > 40
    requested = subprocess.run(
        [*command[:-1], "--help"], capture_output=True, text=True, env=environment
    )
    assert (
        requested.returncode == 0
        and requested.stdout.startswith("usage: ")
        and "key:" not in requested.stdout
    )
