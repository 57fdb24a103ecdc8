"""A file of arrays is what was written, or it is refused in words: nothing of it reaches a caller,
and no memory is taken for it."""

import io
import json
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sizes import examples

from fairseq_ext.core import array_file
from fairseq_ext.core.array_file import DamagedFile

KIND, LAYOUT = "test arrays", {"words": (("<i4",), 2), "chance": (("<f2",), 1)}
ARRAYS = {
    "words": np.arange(12, dtype=np.int32).reshape(3, 4),
    "chance": np.array([0.25, 0.5], np.float16),
}


def written(path: Path, compress: bool = True, version: int = 1, **arrays: np.ndarray) -> Path:
    array_file.save(path, KIND, version, {"text": "abc"}, ARRAYS | arrays, compress)
    return path


def load(path: Path):
    return array_file.load(path, KIND, 1, LAYOUT)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (1, 1)])
def test_arrays_survive_their_file(tmp_path, compress, shape):
    words = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    made_from, found = load(written(tmp_path / "a.npz", compress, words=words))
    assert made_from == {"text": "abc"} and list(found) == list(LAYOUT)
    np.testing.assert_array_equal(found["words"], words)
    np.testing.assert_array_equal(found["chance"], ARRAYS["chance"])
    with np.load(tmp_path / "a.npz", allow_pickle=False) as numpys:
        np.testing.assert_array_equal(numpys["words"], words)


def rewritten(path: Path, change) -> None:
    """The archive with members changed: name -> bytes, None to leave it out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npy(array: np.ndarray, **how) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, **how)
    return out.getvalue()


def about(members: dict[str, bytes], **changes) -> None:
    members["about.json"] = json.dumps(json.loads(members["about.json"]) | changes).encode()


def header(shape: str) -> bytes:
    """An .npy file of 4 bytes whose header says another shape."""
    text = (
        f"{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117)
        + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 4


HARMS = {
    "another number": (
        lambda m: m.update({"words.npy": npy(ARRAYS["words"] + 1)}),
        "not what was written",
    ),
    "another type": (
        lambda m: m.update({"words.npy": npy(ARRAYS["words"].astype(np.int64))}),
        "is int64",
    ),
    "other dimensions": (
        lambda m: m.update({"words.npy": npy(ARRAYS["words"].ravel())}),
        r"of shape \(12,\)",
    ),
    "by column": (
        lambda m: m.update({"words.npy": npy(np.asfortranarray(ARRAYS["words"]))}),
        "of shape",
    ),
    "objects": (
        lambda m: m.update({"words.npy": npy(np.array([[{}]], object), allow_pickle=True)}),
        "is object",
    ),
    "missing": (lambda m: m.pop("words.npy"), "other arrays"),
    "more": (lambda m: m.update({"more.npy": npy(ARRAYS["words"])}), "other arrays"),
    "no about": (lambda m: m.pop("about.json"), "does not state its format"),
    "another format": (lambda m: about(m, format="x"), "of another format"),
    "another version": (
        lambda m: about(m, version=9),
        "of version 9 of its format, and this is version 1",
    ),
    "no origin": (lambda m: about(m, made_from={"text": 1}), "made from"),
    "a list": (lambda m: m.update({"about.json": b"[]"}), "of another format"),
    "deep": (lambda m: m.update({"about.json": b"[" * 60_000}), "cannot be read"),
    "no digest": (lambda m: about(m, sha256=None), "not what was written"),
    "too large a shape": (
        lambda m: m.update({"words.npy": header("(1000000, 1000000)")}),
        "not have the size",
    ),
    "negative shape": (lambda m: m.update({"words.npy": header("(-1, -1)")}), "not have the size"),
    "code as shape": (
        lambda m: m.update({"words.npy": header("(__import__('os').abort(), 1)")}),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_anything_else_is_refused(tmp_path, harm):
    change, said = HARMS[harm]
    rewritten(written(tmp_path / "a.npz"), change)
    with pytest.raises(DamagedFile, match=said):
        load(tmp_path / "a.npz")


def test_an_array_that_is_there_twice_is_refused(tmp_path):
    with (
        zipfile.ZipFile(written(tmp_path / "a.npz"), "a") as archive,
        pytest.warns(UserWarning, match="Duplicate"),
    ):
        archive.writestr("words.npy", npy(ARRAYS["words"]))
    with pytest.raises(DamagedFile, match="other arrays"):
        load(tmp_path / "a.npz")


def test_a_small_file_does_not_unpack_to_a_large_one(tmp_path):
    """A bomb of 300 MB in 300 KB; a file system's pipe or device is not read at all."""
    path = written(tmp_path / "a.npz")
    rewritten(path, lambda m: m.update({"words.npy": npy(np.zeros((3000, 25_000), np.int32))}))
    assert path.stat().st_size < 500_000
    tracemalloc.start()
    with pytest.raises(DamagedFile, match="64 times its size"):
        load(path)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    with pytest.raises(DamagedFile, match="not a regular file"):
        load(Path(os.devnull))


CONTENT: dict[bool, bytes] = {}


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.booleans(),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    st.floats(0, 1),
)
def test_whatever_is_done_to_its_bytes(tmp_path, compress, harms, end):
    """Bytes changed and the end cut off: refused, or the same arrays (where a
    byte means nothing)."""
    if compress not in CONTENT:
        CONTENT[compress] = written(tmp_path / "whole.npz", compress).read_bytes()
    content = bytearray(CONTENT[compress])
    for place, value in harms:
        content[int(place * len(content))] = value
    (tmp_path / "a.npz").write_bytes(
        content[: max(1, round(end * len(content)))] if end < 0.5 else content
    )
    try:
        _, found = load(tmp_path / "a.npz")
    except DamagedFile as error:
        assert "\n" not in str(error)
    else:
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found[name], array)


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.binary(max_size=400))
def test_whatever_else_a_file_holds(tmp_path, content):
    (tmp_path / "b.npz").write_bytes(content)
    with pytest.raises(DamagedFile):
        load(tmp_path / "b.npz")
