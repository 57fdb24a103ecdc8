"""`python -m fairseq_ext` and `python -m fairseq_ext flags NAME`: every flag is told once, with what it does."""

from __future__ import annotations

import re

import pytest

from fairseq_ext import UsageError
from fairseq_ext.__main__ import all_flags, explain, grouped, main


def test_every_flag_is_in_one_group() -> None:
    names = [field.name for _, _, _, fields in grouped() for field in fields]
    assert sorted(names) == sorted(all_flags())


def test_the_help_prints_every_flag_under_its_group(capsys: pytest.CaptureFixture) -> None:
    main([])
    printed = capsys.readouterr().out
    flags = re.findall(r"^  (--[\w-]+)(?: |$)", printed, flags=re.MULTILINE)
    assert sorted(set(flags)) == sorted({"--" + name.replace("_", "-") for name in all_flags()})
    assert printed.index("required and banned phrases:") < printed.index("when a sentence ends:") < printed.index("the run:")


@pytest.mark.parametrize("name", ["prune-bound", "--prune-bound", "prune_bound"])
def test_a_flag_is_explained_with_its_strategy_and_page(name: str, capsys: pytest.CaptureFixture) -> None:
    main(["flags", name])
    printed = capsys.readouterr().out
    assert printed.startswith("--prune-bound: ") and "--stop optimal" in printed and "docs/optimal-ending.md" in printed


def test_every_explanation_shows_its_own_flag_in_a_command() -> None:
    for name in all_flags():
        example = next(line for line in explain(name).splitlines() if line.startswith("Add to a command: "))
        assert f" --{name.replace('_', '-')}" in example, name
    assert "--select topk" not in explain("select").splitlines()[-2]


def test_a_strategy_flag_lists_its_papers() -> None:
    assert "Post and Vilar 2018" in explain("select")


@pytest.mark.parametrize("arguments", [["flags", "nothing"], ["nothing"], ["flags", "select", "more"]])
def test_other_words_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        main(arguments)
