"""A file is written whole or not at all; what is no regular file is written in
place, and links stay."""

import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import warm

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines, atomic_write, is_stream, replace, umask

OLD, NEW = b"old\n", b"new\n"


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "out.json"
    file.write_bytes(OLD)
    return file


def only(folder) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_replaced_and_keeps_its_mode(path):
    path.chmod(0o640)
    replace(path, [b"ne", b"w\n"])
    assert (
        path.read_bytes() == NEW
        and stat.S_IMODE(path.stat().st_mode) == 0o640
        and only(path.parent) == ["out.json"]
    )


def test_a_new_file_has_the_mode_that_open_gives(tmp_path):
    (tmp_path / "plain").write_bytes(NEW)
    replace(tmp_path / "ours", [NEW])
    assert (tmp_path / "ours").stat().st_mode == (
        tmp_path / "plain"
    ).stat().st_mode and umask() == umask()


def test_a_link_stays_a_link(path, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link, dangling = folder / "link", folder / "dangling"
    link.symlink_to(path)
    dangling.symlink_to(tmp_path / "new.json")
    replace(link, [NEW])
    replace(dangling, [NEW])
    assert link.is_symlink() and path.read_bytes() == NEW
    assert dangling.is_symlink() and (tmp_path / "new.json").read_bytes() == NEW
    assert only(folder) == ["dangling", "link"]


def test_a_pipe_is_written_in_place(tmp_path):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    replace(pipe, [NEW])
    reader.join(10)
    assert found == [NEW] and stat.S_ISFIFO(pipe.stat().st_mode) and only(tmp_path) == ["pipe"]


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root makes devices, and only root could replace one"
)
def test_a_device_is_written_in_place(tmp_path):
    """A null device of the test's own: the machine's is not put at risk."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("this container makes no devices")
    link = tmp_path / "link"
    link.symlink_to(device)
    for name in (device, link):
        replace(name, [NEW])
        assert (
            is_stream(name)
            and stat.S_ISCHR(device.stat().st_mode)
            and only(tmp_path) == ["link", "null"]
        )


WRITES = (
    "from fairseq_ext.core.files import replace; print('first'); "
    "replace('{}', [b'second\\n']); print('third')"
)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("sign", [">", ">>"])
def test_what_is_open_already_is_written_on_to(path, name, sign):
    """A standard output that goes to a file: in front of what others write behind it."""
    shell = f'{{ echo before; "$0" -c "$1"; echo after; }} {sign} "$2"'
    code = WRITES.format(name)
    subprocess.run(["sh", "-c", shell, warm.python(), code, path], check=True)
    before = OLD if sign == ">>" else b""
    assert path.read_bytes() == before + b"before\nfirst\nsecond\nthird\nafter\n"


def test_a_standard_output_that_is_closed_cannot_be_written():
    """Also where another file has its number by now."""
    code = f"import sys; file = open(sys.executable); {WRITES.format('/dev/stdout')}"
    shell = '"$0" -c "$1" >&-'
    done = subprocess.run(["sh", "-c", shell, sys.executable, code], stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"it is closed" in done.stderr.splitlines()[-1]


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        replace(tmp_path, [NEW])
    assert only(tmp_path) == []


def test_a_write_that_breaks_off_leaves_all_as_it_was(path):
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), atomic_write(path) as out:
            out.write(NEW)
            raise error
    assert path.read_bytes() == OLD and only(path.parent) == ["out.json"]


def test_a_disk_that_is_full_leaves_all_as_it_was(path):
    before, handler = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError) as full:
            replace(path, [b"x" * 1000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (
        full.value.errno == errno.EFBIG
        and path.read_bytes() == OLD
        and only(path.parent) == ["out.json"]
    )


def test_file_and_folder_are_on_disk_before_the_call_returns(path, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (synced.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle)),
    )
    replace(path, [NEW])
    assert len(synced) == 2 and synced[0].endswith(".part") and synced[1] == str(path.parent)


def test_the_lines_of_a_text_are_counted_and_iterated(tmp_path):
    file = tmp_path / "text"
    file.write_bytes("\ufeffone\r\n\ntwo\u2028still two\nthree".encode())
    assert list(Lines(str(file), "--x")) == ["one", "", "two\u2028still two", "three"]
    file.write_bytes(b"one\n\xff\n")
    with pytest.raises(
        UsageError, match="line 2 of .* is not valid UTF-8 .byte 1.: convert the file"
    ):
        list(Lines(str(file), "--x"))


def test_a_large_file_that_is_shortened_meanwhile_is_an_error_and_no_signal(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_ext.core.files.MAX_IN_MEMORY", 10)
    monkeypatch.setattr("fairseq_ext.core.files.BLOCK", 7)
    file = tmp_path / "text"
    text = "".join(f"line {number}\n" for number in range(3000)) + "the last one"
    file.write_text(text)
    lines = Lines(str(file), "--x")
    assert list(lines) == text.split("\n") and lines[2999] == "line 2999"
    file.write_text("line 0\nline 1\n")  # as an editor does
    assert lines[1] == "line 1"
    with pytest.raises(UsageError, match="was shortened while it was read"):
        lines[2999]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    """And what another one is writing is not."""
    target = tmp_path / "a[b].txt"
    left, other = tmp_path / ".a[b].txt.abcd1234.part", tmp_path / ".c.txt.abcd1234.part"
    left.write_bytes(b"x")
    other.write_bytes(b"x")
    with atomic_write(target) as first:
        assert not left.exists() and other.exists()
        with atomic_write(target) as second:
            second.write(b"second")
        first.write(b"first")
    assert target.read_bytes() == b"first" and sorted(tmp_path.iterdir()) == [other, target]


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_several_writers_replace_one_file(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    target, contents = tmp_path / "a.txt", [[b"%d" % number] for number in range(2000)]
    with pool(4) as writers:
        list(writers.map(replace, [target] * len(contents), contents))
    assert target.read_bytes().isdigit() and only(tmp_path) == ["a.txt"]


def test_a_file_that_another_takes_for_one_of_a_killed_process_is_made_again(tmp_path, monkeypatch):
    """The other finds it before it is locked, and removes it a moment later."""
    target, lock = tmp_path / "a.txt", fcntl.flock
    monkeypatch.setattr(os, "fsync", lambda handle: time.sleep(0.3))
    others = []

    def remove(path, file):
        path.unlink()
        file.close()

    def late(handle, operation):
        if not others:
            (path,) = tmp_path.glob(".*.part")
            others.append(open(path, "rb"))
            lock(others[0], fcntl.LOCK_EX)
            threading.Timer(0.2, remove, [path, others[0]]).start()
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    replace(target, [NEW])
    assert others and target.read_bytes() == NEW and only(tmp_path) == ["a.txt"]


def test_a_written_file_is_locked_until_it_has_its_name(tmp_path, monkeypatch):
    rename, found = os.replace, []

    def renamed(part, target):
        with open(part, "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found.append(rename(part, target))

    monkeypatch.setattr(os, "replace", renamed)
    replace(tmp_path / "a.txt", [NEW])
    assert found == [None]
