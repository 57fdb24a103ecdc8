"""The steps of scripts/docker/Dockerfile in a folder that holds a Debian (mmdebstrap), for want of
a container engine (--all)."""

import ast
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest
import sizes
import yaml
from test_install import DEMO, ROOT

FOLDER = ROOT / "scripts" / "docker"
STAGE = (FOLDER / "Dockerfile").read_text().rpartition("\nFROM ")[2]  # the last
KEY = "a key"


def reported(word: str) -> list[str]:
    """What the lines of the last stage say that begin with a word."""
    return [line.partition(" ")[2] for line in STAGE.splitlines() if line.startswith(f"{word} ")]


def test_the_image_is_not_roots_and_its_parts_fit() -> None:
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["translate"]
    assert STAGE.startswith("debian:") and "g++" not in STAGE
    assert reported("USER") == ["translator"] and STAGE.index("\nUSER ") < STAGE.index(
        "\nENTRYPOINT "
    )
    # whatever a request can hold
    assert set(re.findall(r"\[([a-z,]+)\]", STAGE)[0].split(",")) == {"serve", "text"}
    (volume,), (port,), entry = (
        reported("VOLUME"),
        reported("EXPOSE"),
        json.loads(reported("ENTRYPOINT")[0]),
    )
    assert entry[entry.index("--data") + 1] == volume and entry[
        entry.index("--api-keys") + 1
    ].startswith(f"{volume}/")
    assert f"localhost:{port}/ready" in reported("HEALTHCHECK")[0]
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"] and service["volumes"][0].endswith(
        f":{volume}:ro"
    )
    (user,), (home,) = re.findall(r"--uid (\d+)", STAGE), reported("WORKDIR")
    assert service["read_only"] and f"{home}:uid={user},gid={user}" in service["tmpfs"]
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).samefile(
        FOLDER / "Dockerfile"
    )


def inside(root: Path, words: list[str], *options: str, here: str = "") -> list[str]:
    """A command that runs in the folder as its root, with a /proc and shared memory of its own, and
    this machine's files below `here`."""
    shown = f'mount --rbind / "$0{here}" && mount -o remount,bind,ro "$0{here}" &&' if here else ""
    steps = (
        f'mount -t proc proc "$0/proc" && mount -t tmpfs shm "$0/dev/shm" && {shown} '
        'exec chroot "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", steps, str(root), *options, str(root), *words]


def settings_of_pip(here: str) -> dict[str, str]:
    """What pip's files and variables say on this machine, and those of certificates, for a root
    that has its files below `here`."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    lines = [line.partition("=") for line in listed.splitlines() if not line.startswith(":env:")]
    said = {
        f"PIP_{name.rpartition('.')[2].upper().replace('-', '_')}": ast.literal_eval(value)
        for name, _, value in lines
    }
    said |= {
        name: value
        for name, value in os.environ.items()
        if re.match("PIP_|SSL_CERT_|.*CA_BUNDLE", name)
    }
    return {
        name: re.sub(r"(?<!\S)(file://)?(/\S+)", rf"\1{here}\2", value)
        for name, value in said.items()
    }


@pytest.fixture
def root(tmp_path, wheel) -> Path:
    """A Debian on which the steps have run; torch is the one of this environment,
    which may be there."""
    made, here = tmp_path / "root", "/here"
    subprocess.run(
        ["mmdebstrap", "--mode=root", "--variant=minbase", "bookworm", made],
        check=True,
        capture_output=True,
    )
    for folder in ("wheels", here[1:]):
        (made / folder).mkdir()
    shutil.copy(wheel, made / "wheels")
    for given in ("resolv.conf", "hosts"):  # as a container engine does
        shutil.copy(f"/etc/{given}", made / "etc")
    (made / "torch.txt").write_text(f"torch=={version('torch')}\n")
    settings = {**os.environ, "TMPDIR": "/tmp", "PIP_RETRIES": "1", **settings_of_pip(here)}
    settings |= dict(line.split("=", 1) for line in reported("ARG"))
    settings["PIP_CONSTRAINT"] = f"{settings.get('PIP_CONSTRAINT', '')} /torch.txt"
    for step in reported("RUN"):
        done = subprocess.run(
            inside(made, ["sh", "-c", step], here=here),
            env=settings,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, step + done.stdout[-2000:] + done.stderr[-2000:]
    return made


@pytest.mark.skipif(
    not os.environ.get(sizes.ALL), reason="with --all: it takes minutes, and a network"
)
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)
def test_the_steps_make_a_server_that_becomes_healthy_and_requests_a_key(root) -> None:
    shutil.copytree(DEMO, root / "model")
    (root / "model" / "api-keys").write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} test\n")
    assert not any((root / "usr" / "bin" / name).exists() for name in ("gcc", "g++", "c++", "cc"))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    words = [*json.loads(reported("ENTRYPOINT")[0]), "-s", "de", "-t", "en", "--port", port]
    user = "--userspec=translator"
    check = json.loads(
        reported("HEALTHCHECK")[0].partition("CMD ")[2].replace(reported("EXPOSE")[0], port)
    )
    with subprocess.Popen(
        inside(root, words, user),
        stderr=subprocess.PIPE,
        text=True,
        env={"HOME": "/home/translator"},
    ) as server:
        try:
            end = time.monotonic() + 300
            while subprocess.run(
                inside(root, check, user), capture_output=True, check=False
            ).returncode:
                assert time.monotonic() < end and server.poll() is None, server.stderr.read()
                time.sleep(1)
            assert os.stat(f"/proc/{server.pid}").st_uid == 1000
            requested = urllib.request.Request(
                f"http://localhost:{port}/translate",
                b"q=Das Angebot wird morgen.&source=auto&target=en",
            )
            # as LibreTranslate's own server
            with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                urllib.request.urlopen(requested, timeout=60)
            assert "to get an API key" in json.load(refused.value)["error"]
            requested.add_header("Authorization", f"Bearer {KEY}")
            assert json.load(urllib.request.urlopen(requested, timeout=60))["translatedText"]
        finally:
            server.terminate()
