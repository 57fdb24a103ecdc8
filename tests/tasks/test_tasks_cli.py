"""Every task that has a twin, through the real commands: equal to stock without our flags, and with constraints that are met."""

import random
import re
from pathlib import Path

import pytest
from conftest import command

SIZE = [f"--{side}-{what}={n}" for side in ("encoder", "decoder") for what, n in
        {"embed-dim": 16, "ffn-embed-dim": 16, "layers": 1, "attention-heads": 2}.items()]  # fmt: skip
SIZE += ["--max-source-positions=40", "--max-target-positions=40"]
ONCE = ["--max-update", 1, "--optimizer", "adam", "--lr", "1e-3", "--max-tokens", 500, "--disable-validation", "--no-epoch-checkpoints"]
LANGUAGES = ["--langs", "de,en"]
MULTI = [*LANGUAGES, "--lang-pairs", "de-en", "--encoder-langtok", "src", "--decoder-langtok"]
TASKS = {
    "translation_multi_simple_epoch": MULTI,
    "translation_multi_simple_epoch, bos and eos replaced": [*MULTI, "--lang-tok-replacing-bos-eos"],
    "translation_from_pretrained_bart": [*LANGUAGES, "--prepend-bos"],
}
SEARCH = ["--cpu", "--max-len-b", 12, "--batch-size", 4, "-s", "de", "-t", "en"]


@pytest.fixture(scope="module", params=TASKS)
def trained(request, tmp_path_factory) -> tuple[Path, str, list]:
    """A data directory with one dictionary for both sides, and a checkpoint of the task after one update."""
    root, chance = tmp_path_factory.mktemp("task"), random.Random(1)
    for split, lines in (("train", 40), ("valid", 3), ("test", 7)):
        for language in ("de", "en"):
            text = [" ".join(f"w{chance.randrange(30)}" for _ in range(chance.randint(1, 9))) for _ in range(lines)]
            text[0] = " ".join(f"w{i}" for i in range(30)) if split == "train" else text[0]
            (root / f"{split}.{language}").write_text("\n".join(text) + "\n")
    splits = [f"--{split}pref={root / split}" for split in ("train", "valid", "test")]
    command("fairseq-preprocess", "-s", "de", "-t", "en", *splits, "--joined-dictionary", "--destdir", root / "data", "--workers", 1)
    name, flags = request.param.partition(",")[0], TASKS[request.param]
    pair = [] if "--lang-pairs" in flags else ["-s", "de", "-t", "en"]
    command("fairseq-train", root / "data", "--task", name, *flags, *pair, "--arch", "transformer", *SIZE, *ONCE, "--share-all-embeddings",
            "--no-progress-bar", "--cpu", "--save-dir", root / "saved")  # fmt: skip
    return root, name, flags


def rows(out: str, kinds: str = "SHDP") -> list[list[str]]:
    return sorted(line.split("\t") for line in out.splitlines() if re.match(rf"[{kinds}]-\d+\t", line))


def same_rows(expected: str, got: str) -> None:
    theirs, ours = rows(expected), rows(got)
    assert len(theirs) > 10 and [r[0] for r in ours] == [r[0] for r in theirs]
    for a, b in zip(theirs, ours, strict=True):
        assert b[2:] == a[2:]
        if a[0][0] in "HDP":
            assert [float(x) for x in b[1].split()] == pytest.approx([float(x) for x in a[1].split()], abs=2e-4)


@pytest.mark.parametrize("beam", [1, 5])
def test_generate_equals_stock(trained, beam):
    root, name, flags = trained
    where = [root / "data", "--path", root / "saved" / "checkpoint_last.pt", *SEARCH, *flags, "--beam", beam]
    stock = command("fairseq-generate", *where, "--task", name).stdout
    same_rows(stock, command("fairseq-generate", *where, "--task", f"{name}_ext").stdout)


def test_interactive_equals_stock_and_meets_what_is_typed(trained):
    root, name, flags = trained
    where = [root / "data", "--path", root / "saved" / "checkpoint_last.pt", *SEARCH, *flags, "--beam", 5, "--buffer-size", 4]
    text = "w1 w2 w3\nw4\nw5 w6 w7 w8 w9\nw10 w11\n"
    stock = command("fairseq-interactive", *where, "--task", name, stdin=text).stdout
    same_rows(stock, command("fairseq-interactive", *where, "--task", f"{name}_ext", stdin=text).stdout)
    typed = "".join(f"{line}\tw{20 + i}\n" for i, line in enumerate(text.splitlines()))
    out = command("fairseq-interactive", *where, "--task", f"{name}_ext", "--constraints", "unordered", stdin=typed).stdout
    found = rows(out, "H")
    assert len(found) == 4
    for number, (_, _, words) in enumerate(found):
        assert f"w{20 + number}" in words.split()
