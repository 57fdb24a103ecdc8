"""The page "Install" from nothing: a wheel in an environment of its own, without compilers, in a
folder that is not the clone (--all); and the steps of scripts/docker/Dockerfile in a folder that
holds a Debian (mmdebstrap), for want of a container engine (--all). And the doctor, which names
what is wrong, says what to do, and whose exit code is for scripts."""

import ast
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import sizes
import torch
import yaml
from conftest import BIN, ran
from demo_model import MODEL as DEMO
from demo_model import OURS, ROOT
from torch.torch_version import TorchVersion

from fairseq_ext import doctor
from fairseq_ext.kernels import library as building
from fairseq_ext.kernels.compiling import LEVELS
from fairseq_ext.plugin.compat import patches

TOOLS = ("cat", "grep", "sh")
pytestmark = pytest.mark.timeout(3600)  # a wheel compiles each level; busy machines take long
needs_all = pytest.mark.skipif(
    not os.environ.get(sizes.ALL),
    reason="with --all: it takes minutes, and a network or pip's settings",
)


def run(words, folder, **environment):
    return ran(*words, cwd=folder, timeout=3600, **environment)


@needs_all
@pytest.mark.skipif(
    building.compiler() is None or os.uname().machine not in LEVELS,
    reason="there is no C++ compiler, or no level",
)
def test_one_wheel_of_this_machine_holds_the_package_and_a_library_of_every_level(wheel):
    """And no file that an earlier build left."""
    assert wheel.name.partition("-py3-none-")[2] == f"linux_{os.uname().machine}.whl"
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    libraries = {name for name in names if name.endswith(".so")}
    assert {Path(name).stem for name in libraries} == {"levels", *LEVELS[os.uname().machine]}
    files = (path for path in (ROOT / "fairseq_ext").rglob("*") if path.is_file())
    there = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert names - libraries == {"fairseq_ext.pth", "fairseq_ext_start.py", *there}


def test_the_first_command_makes_the_environment_that_pip_installs_into(tmp_path):
    """The system's pip refuses on Debian 12 and Ubuntu 24.04 (PEP 668)."""
    first = "python3 -m venv .venv && . .venv/bin/activate"
    for page in ("README.md", "docs/install.md"):
        text = (ROOT / page).read_text("utf-8")
        assert first in text and text.index(first) < text.index("pip install"), page
    done = run(["bash", "-ec", f"{first}; command -v pip; command -v python"], tmp_path)
    assert done.stdout.split() == [f"{tmp_path}/.venv/bin/{name}" for name in ("pip", "python")]


@needs_all
def test_the_wheel_of_the_demo_holds_the_demo_model(tmp_path):
    run(["bash", ROOT / "scripts" / "wheels.sh", "--demo", "out"], tmp_path, PYTHON=sys.executable)
    (wheel,) = (tmp_path / "out").glob("fairseq_ext_demo-*-py3-none-any.whl")
    packed = zipfile.ZipFile(wheel)
    for path in DEMO.iterdir():
        assert packed.read(f"fairseq_ext_demo/{path.name}") == path.read_bytes()
    packed.extractall(tmp_path / "installed")
    code = "import fairseq_ext_demo as d; print(d.__path__[0])"
    there = tmp_path / "installed"
    found = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(there))
    assert found.stdout.strip() == str(there / "fairseq_ext_demo")


@needs_all
def test_the_installed_wheel_translates_as_the_clone_does(wheel, tmp_path):
    """The page's commands; pip gets the torch of this environment, which may be there."""
    for line in ("pip install fairseq_ext-*.whl", "python -m fairseq_ext.doctor --install-fairseq"):
        assert line in (ROOT / "docs" / "install.md").read_text()
    tools, home = tmp_path / "tools", tmp_path / "here"
    tools.mkdir()
    home.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(f"/bin/{name}")
    venv.create(home / ".venv", with_pip=True)
    bare = {"PATH": f"{home / '.venv' / 'bin'}:{tools}", "PYTHONPATH": "", "CXX": ""}
    bare["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    (home / "torch.txt").write_text(f"torch=={version('torch')}\n")
    python = home / ".venv" / "bin" / "python"
    run([python, "-m", "pip", "install", "-q", "-c", "torch.txt", wheel], home, **bare)
    reported = run([python, "-m", "fairseq_ext.doctor", "--install-fairseq"], home, **bare).stdout
    assert "FAIL" not in reported and "all that is required works" in reported
    assert f"ok    compiled step: {home}" in reported
    assert "fairseq was installed without a compiler" in reported
    text = (ROOT / "data" / "demo" / "test.de").read_text("utf-8").splitlines(keepends=True)[:20]
    (home / "text.de").write_text("".join(text), "utf-8")
    flags = [DEMO, *OURS, "--input", "text.de", "--buffer-size", 20, "--batch-size", 7]

    def translations(folder, **environment):
        out = run([folder / "fairseq-interactive", *flags], home, **environment).stdout
        return [line for line in out.splitlines() if line.startswith("D-")]

    theirs = translations(BIN)
    assert len(theirs) == 20 and translations(python.parent, **bare) == theirs
    run([python, "-m", "pip", "install", "-q", "numpy<2"], home, **bare)  # as mbrs wants it
    assert translations(python.parent, **bare) == theirs
    assert not list((tmp_path / "cache").rglob("*.so"))  # nothing was compiled


@needs_all
def test_the_commands_of_the_first_pages_run_with_the_wheel(wheel):
    pages = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]
    run([sys.executable, ROOT / "scripts" / "docs.py", "--wheel", wheel, *pages], ROOT)


FOLDER = ROOT / "scripts" / "docker"
STAGE = (FOLDER / "Dockerfile").read_text().rpartition("\nFROM ")[2]  # the last
KEY = "a key"


def reported(word):
    """What the lines of the last stage say that begin with a word."""
    return [line.partition(" ")[2] for line in STAGE.splitlines() if line.startswith(f"{word} ")]


def test_the_image_is_not_roots_and_its_parts_fit():
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["translate"]
    assert STAGE.startswith("debian:") and "g++" not in STAGE
    assert reported("USER") == ["translator"]
    assert STAGE.index("\nUSER ") < STAGE.index("\nENTRYPOINT ")
    # whatever a request can hold
    assert set(re.findall(r"\[([a-z,]+)\]", STAGE)[0].split(",")) == {"serve", "text"}
    (volume,), (port,) = reported("VOLUME"), reported("EXPOSE")
    entry = json.loads(reported("ENTRYPOINT")[0])
    assert entry[entry.index("--data") + 1] == volume
    assert entry[entry.index("--api-keys") + 1].startswith(f"{volume}/")
    assert f"localhost:{port}/ready" in reported("HEALTHCHECK")[0]
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert service["volumes"][0].endswith(f":{volume}:ro")
    (user,), (home,) = re.findall(r"--uid (\d+)", STAGE), reported("WORKDIR")
    assert service["read_only"] and f"{home}:uid={user},gid={user}" in service["tmpfs"]
    build = service["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).samefile(FOLDER / "Dockerfile")


def inside(root, words, *options, here=""):
    """A command that runs in the folder as its root, with a /proc and shared memory of its own, and
    this machine's files below `here`."""
    shown = f'mount --rbind / "$0{here}" && mount -o remount,bind,ro "$0{here}" &&' if here else ""
    steps = (
        f'mount -t proc proc "$0/proc" && mount -t tmpfs shm "$0/dev/shm" && {shown} '
        'exec chroot "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", steps, str(root), *options, str(root), *words]


def settings_of_pip(here):
    """What pip's files and variables say on this machine, and those of certificates, for a root
    that has its files below `here`."""
    listed = ran(sys.executable, "-m", "pip", "config", "list").stdout
    lines = [line.partition("=") for line in listed.splitlines() if not line.startswith(":env:")]
    said = {
        f"PIP_{name.rpartition('.')[2].upper().replace('-', '_')}": ast.literal_eval(value)
        for name, _, value in lines
    }
    known = re.compile("PIP_|SSL_CERT_|.*CA_BUNDLE")
    said |= {name: value for name, value in os.environ.items() if known.match(name)}
    place = re.compile(r"(?<!\S)(file://)?(/\S+)")
    return {name: place.sub(rf"\1{here}\2", value) for name, value in said.items()}


@pytest.fixture
def root(tmp_path, wheel):
    """A Debian on which the steps have run; torch is the one of this environment,
    which may be there."""
    made, here = tmp_path / "root", "/here"
    ran(*"mmdebstrap --mode=root --variant=minbase bookworm".split(), made, timeout=3600)
    for folder in ("wheels", here[1:]):
        (made / folder).mkdir()
    shutil.copy(wheel, made / "wheels")
    for given in ("resolv.conf", "hosts"):  # as a container engine does
        shutil.copy(f"/etc/{given}", made / "etc")
    (made / "torch.txt").write_text(f"torch=={version('torch')}\n")
    settings = {"TMPDIR": "/tmp", "PIP_RETRIES": "1", **settings_of_pip(here)}
    settings |= dict(line.split("=", 1) for line in reported("ARG"))
    settings["PIP_CONSTRAINT"] = f"{settings.get('PIP_CONSTRAINT', '')} /torch.txt"
    for step in reported("RUN"):
        ran(*inside(made, ["sh", "-c", step], here=here), timeout=3600, **settings)
    return made


@needs_all
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)
def test_the_steps_make_a_server_that_becomes_healthy_and_requests_a_key(root):
    shutil.copytree(DEMO, root / "model")
    (root / "model" / "api-keys").write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} test\n")
    assert not any((root / "usr" / "bin" / name).exists() for name in ("gcc", "g++", "c++", "cc"))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    words = [*json.loads(reported("ENTRYPOINT")[0]), "-s", "de", "-t", "en", "--port", port]
    user, home = "--userspec=translator", {"HOME": "/home/translator"}
    health = reported("HEALTHCHECK")[0].partition("CMD ")[2]
    check = json.loads(health.replace(reported("EXPOSE")[0], port))
    start = inside(root, words, user)
    with subprocess.Popen(start, stderr=subprocess.PIPE, text=True, env=home) as server:
        try:
            end = time.monotonic() + 300
            while ran(*inside(root, check, user), check=False).returncode:
                assert time.monotonic() < end and server.poll() is None, server.stderr.read()
                time.sleep(1)
            assert os.stat(f"/proc/{server.pid}").st_uid == 1000
            url = f"http://localhost:{port}/translate"
            body = b"q=Das Angebot wird morgen.&source=auto&target=en"
            requested = urllib.request.Request(url, body)
            # as LibreTranslate's own server
            with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                urllib.request.urlopen(requested, timeout=60)
            assert "to get an API key" in json.load(refused.value)["error"]
            requested.add_header("Authorization", f"Bearer {KEY}")
            assert json.load(urllib.request.urlopen(requested, timeout=60))["translatedText"]
        finally:
            server.terminate()


# ---- python -m fairseq_ext.doctor


@pytest.fixture
def quick(monkeypatch):
    """Only the items that start no other process."""
    slow = ("start-up hook", "tasks", "compiled step")
    monkeypatch.setattr(doctor, "ITEMS", [each for each in doctor.ITEMS if each.name not in slow])


def test_doctor_passes_here_and_decodes(hostile):
    done = ran(sys.executable, "-m", "fairseq_ext.doctor", cwd=hostile)
    assert not list(hostile.glob("*.run"))
    lines = re.findall("^(ok|note|FAIL) +(.*?):", done.stdout, re.MULTILINE)
    found = {name: kind for kind, name in lines}
    assert list(found) == [item.name for item in doctor.ITEMS]
    assert "FAIL" not in found.values()
    assert f"--user-dir {Path(doctor.__file__).parent}" in done.stdout
    # of two tasks; of numpy 2; of an installation without a compiler; of fairseq's commands
    absent = "set_up_no_log give_numpy_long replace_compiled log_as_stock read_lines_as_typed"
    for patch in patches.PATCHES:
        if patch.change.__name__ not in absent.split():
            where = " (in commands alone)" * patch.is_of_command
            assert f"\npatch {patch.what}: {patch.why}{where}\n" in done.stdout
            assert patch.why.endswith((".", ":")), patch.what


def test_another_fairseq_is_a_failing_item_with_its_remedy(quick, monkeypatch, capsys):
    versions = importlib.metadata.version
    old = {"fairseq": "0.10.0"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: old.get(name) or versions(name))
    assert doctor.main() == 1
    said = capsys.readouterr().out
    assert "FAIL  fairseq: 0.10.0\n      -> " in said
    assert "python -m fairseq_ext.doctor --install-fairseq" in said
    assert "1 required item failed; mend" in said


@pytest.fixture
def without_pip(tmp_path):
    """The Python of an environment such as uv makes."""
    venv.create(tmp_path / "venv", with_pip=False)
    return tmp_path / "venv" / "bin" / "python"


def install_fairseq(python, path):
    words = [python, Path(doctor.__file__), "--install-fairseq"]
    return ran(*words, check=False, PATH=str(path), PYTHONPATH="")


def test_in_an_environment_of_uv_fairseq_is_installed_by_uv(without_pip, tmp_path):
    """The uv here notes its arguments, and fails."""
    uv, log = tmp_path / "bin" / "uv", tmp_path / "log"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\necho "$READTHEDOCS $*" > {log}\nexit 1\n')
    uv.chmod(0o755)
    done = install_fairseq(without_pip, uv.parent)
    words = "--no-cache --no-deps --no-binary fairseq fairseq==0.12.2"
    assert log.read_text() == f"1 pip install --python {without_pip} {words}\n"
    said = "fairseq could not be installed (the message is above): mend that and run this again"
    assert (done.returncode, done.stderr) == (1, f"error: {said}\n")


def test_without_pip_and_uv_the_doctor_says_how_to_get_one(without_pip, tmp_path):
    done = install_fairseq(without_pip, tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: the environment of {without_pip} has no pip, and uv is not on the PATH: install "
        f"one of them ({without_pip} -m ensurepip), and run this again\n",
    )


def broken():
    raise RuntimeError("the driver is too old\nand more")


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            doctor.Item("nothing", doctor.installed("no-such-distribution", "no_such_module")),
            f"FAIL  nothing: not installed\n      -> {doctor.SET_UP}",
        ),
        (  # which fails no one
            doctor.Item("CuPy", broken, required=False, remedy="do without"),
            "note  CuPy: RuntimeError: the driver is too old\n      -> do without",
        ),
    ],
)
def test_what_is_missing_or_broken_is_named_with_its_remedy(item, said, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "ITEMS", [item])
    assert doctor.main() == said.startswith("FAIL")
    assert said in capsys.readouterr().out


def test_a_dead_start_up_hook_is_noticed_and_its_remedy_is_a_command(monkeypatch, tmp_path, capsys):
    (hook,) = (item for item in doctor.ITEMS if item.name == "start-up hook")
    monkeypatch.setattr(
        doctor.child, "python", lambda kind, code: [sys.executable, "-S", kind, code]
    )
    assert not doctor.examine(hook)
    said = capsys.readouterr().out
    assert said.startswith("FAIL  start-up hook: not active\n      -> add --user-dir ")
    words = said.rpartition(": ")[2].replace(sysconfig.get_path("purelib"), str(tmp_path))
    ran("sh", "-c", words)
    start = f"import site; site.addsitedir({str(tmp_path)!r}); {doctor.HOOK_PROBE}"
    ran(sys.executable, "-S", "-c", start)


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.10.0a0+git1", "2.5.1", "1.13"])
def test_an_old_torch_fails_and_a_newer_one_does_not(version, monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    good = doctor.examine(doctor.Item("torch", doctor.torch_and_devices))
    assert good == version.startswith(("2.13", "2.10"))
    assert f"torch: {version}" in capsys.readouterr().out


def test_where_the_packages_of_the_extras_are_missing_each_extra_is_named(
    quick, monkeypatch, capsys
):
    """Those of setup.py, but for the one that builds the pages."""
    missing = "interegular matplotlib safetensors sentencex fastapi uvicorn ray pyarrow".split()
    version = importlib.metadata.version

    def version_here(name):
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", version_here)
    monkeypatch.setitem(sys.modules, "cupy", None)
    setup = (ROOT / "setup.py").read_text().partition("extras_require")[2]
    extras = set(re.findall(r'^        "(\w+)": \[', setup, re.MULTILINE)) - {"docs"}
    assert doctor.main() == 0 and len(extras) == 7
    said = capsys.readouterr().out
    assert set(re.findall(r"pip install 'fairseq_ext\[(\w+)\]'", said)) == extras
