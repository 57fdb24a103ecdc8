"""`python -m fairseq_ext` and `python -m fairseq_ext flags NAME`: every flag is reported
once, with what it does."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from argparse import _HelpAction, _SubParsersAction
from dataclasses import replace
from pathlib import Path

import pytest
from fairseq.dataclass.utils import interpret_dc_type
from fairseq.options import get_generation_parser, parse_args_and_arch
from sizes import drawn

import fairseq_ext
from fairseq_ext import UsageError
from fairseq_ext.__main__ import main
from fairseq_ext.plugin.flag_help import (
    Group,
    all_flags,
    explain,
    files_of_values,
    flag_groups,
)
from fairseq_ext.plugin.options import chosen_settings, read_settings
from fairseq_ext.search.settings import CommandSettings

ROOT = Path(__file__).resolve().parents[2]


def test_the_help_prints_every_flag_under_its_group(capsys: pytest.CaptureFixture) -> None:
    main([])
    printed = capsys.readouterr().out
    flags = re.findall(r"^  (--[\w-]+)(?: |$)", printed, flags=re.MULTILINE)
    assert sorted(flags) == sorted("--" + name.replace("_", "-") for name in all_flags())
    groups = "required and banned phrases:", "when a sentence ends:", "the run:"
    assert sorted(map(printed.index, groups)) == [*map(printed.index, groups)]


def test_the_help_says_next_to_each_route_in_which_order_phrases_come(
    capsys: pytest.CaptureFixture,
) -> None:
    main([])
    printed = " ".join(capsys.readouterr().out.split())
    said = printed.partition("fairseq's own --constraints: ")[2]
    said = said.partition("--constraints-file CONSTRAINTS_FILE")[0]
    assert "Bare it means ordered, as in stock" in said
    assert "Phrases of our files and of Python are unordered" in said
    for flag in ("constraints_file", "glossary"):
        assert "in any order unless --constraints is ordered" in str(
            all_flags()[flag].metadata["help"]
        )


@pytest.mark.parametrize("name", ["prune-bound", "--prune-bound", "prune_bound"])
def test_a_flag_is_explained_with_its_strategy_and_page(
    name: str, capsys: pytest.CaptureFixture
) -> None:
    main(["flags", name])
    printed = capsys.readouterr().out
    assert printed.startswith("--prune-bound: ") and "--stop optimal" in printed
    assert "docs/optimal-ending.md" in printed
    assert "Post and Vilar 2018" in explain("select")


@pytest.mark.parametrize("group", flag_groups(), ids=lambda group: group.title)
def test_an_example_is_a_command_that_works(group: Group) -> None:
    """Read as fairseq-generate reads it."""
    parser = get_generation_parser(default_task="translation_ext")
    given = ["data", "--path", "model.pt", *group.example.split()]
    args = parse_args_and_arch(parser, given)
    settings = replace(read_settings(args), command=CommandSettings(segments_text=True))
    assert chosen_settings(settings, args)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["flags", "length"], "did you mean .*--length-reward, "),
        (["flags", "--constrain-end"], "did you mean .*--constraint-end"),
        (["flags", "xyzzy"], "xyzzy is not a flag of fairseq_ext: python"),
        (["nothing"], ""),
        (["flags", "select", "more"], ""),
    ],
)
def test_other_words_are_refused_with_near_flags(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        main(arguments)


def test_every_explanation_ends_with_a_page_that_speaks_of_the_flag() -> None:
    for name in all_flags():
        said = explain(name).splitlines()[-1]
        page = (ROOT / said.removeprefix("More: ")).read_text(encoding="utf-8")
        assert said.startswith("More: ") and f"--{name.replace('_', '-')}" in page, (name, said)


UNITS = (
    "nats|subwords|tokens?|words?|sentences|hypothes[ei]s|ways|slots|rows|processes|bits|bands|"
    "calls|codes|dimensions|share|seed|length"
)


def test_the_help_of_every_number_says_its_unit() -> None:
    for name, field in all_flags().items():
        if interpret_dc_type(field.type) in (int, float):
            said = str(field.metadata["help"])
            assert re.search(rf"\b({UNITS})\b", said), (name, said)


PARSERS = {
    "allowed": "fairseq_ext.allowed:parser",
    "corpus": "fairseq_ext.corpus.__main__:parser",
    "serve": "fairseq_ext.serve.__main__:parser",
    "terms": "fairseq_ext.terms.__main__:parser",
    "ddg": "fairseq_ext.viz.ddg:parser",
}


@pytest.mark.parametrize("command", PARSERS)
def test_every_flag_of_the_other_commands_says_what_it_is_and_its_default(command: str) -> None:
    module, _, name = PARSERS[command].partition(":")
    top = getattr(importlib.import_module(module), name)()
    inner = [
        p
        for action in top._actions
        for p in (action.choices.values() if isinstance(action, _SubParsersAction) else ())
    ]
    reported = [
        action
        for p in inner or [top]
        for action in p._actions
        if not isinstance(action, (_SubParsersAction, _HelpAction))
    ]
    assert reported
    for action in reported:
        default = f"{action.default:g}" if isinstance(action.default, float) else action.default
        said = re.sub(r"%\(default\)[sdg]", str(default), action.help or "")
        assert len(said) > 8, action.dest
        assert action.required or "default: " in said, action.dest
        if action.default not in (None, (), []) and not isinstance(action.default, bool):
            assert f"default: {default}" in said


def test_every_explanation_names_the_file_that_declares_the_flag() -> None:
    for name in all_flags():
        for value, own in files_of_values(name).items():
            text = (ROOT / "fairseq_ext" / own).read_text(encoding="utf-8")
            assert f"--{name.replace('_', '-')} {value}" in text, (name, value)
            assert f"Its value {value} is implemented in fairseq_ext/{own}." in explain(name)
        file, work = re.findall(
            r"^It is declared in (\S+)\.\nIt is implemented in (\S+)\.$", explain(name), re.M
        )[0]
        assert (ROOT / work).exists() and Path(work).name not in ("flags.py", "options.py"), name
        text = (ROOT / file).read_text(encoding="utf-8")
        declared = re.search(rf'^    {name}: .*= field\(|option\(\s*"{name}"', text, re.M)
        assert declared, (name, file)


# ---- Calls are typed


SNIPPET = """
from collections.abc import Sequence
from pathlib import Path
from fairseq_ext import Engine, Translation, Translator, UsageError

def right(lines: list[str]) -> list[list[Translation]]:
    translator = Translator(
        "model.pt", Path("data"), beam=5, stop="optimal", prune_bound=True, bpe="sentencepiece",
        lenpen=1, cpu=True,
    )
    translator.score(lines, lines)[0].positional_scores
    print(next(translator.translate_iter(iter(lines), beam=2))[0].text.upper())
    print(translator.translate(lines)[0][0].score + 1)
    for found in translator.translate(lines, errors="return"):
        print(str(found) if isinstance(found, UsageError) else found[0].text)
    with Engine("model.pt", Path("data"), beam=5, cpu_workers=2, stream_width=8) as engine:
        print(engine.submit("x", terms={"a": "b"}).result().text.upper())
    made = Translator.from_folder("data", beam=2)
    some: Sequence[str] = lines
    made.translate(some, constraints=[some, some], avoid=some)
    made.translate(tuple(lines), avoid=[["a"], []], prefixes=[None, "a"], constraints=[["a"], ()])
    made.translate_text("x", format="html", protect=[r"\\d+"])
    return made.translate(lines, progress=True, constraints=[["a", ["b", "c"]]], avoid=lines)

def wrong(translator: Translator, engine: Engine) -> None:
    translator.translate(["x"])[0].text  # 1 text
    translator.translate(["x"], errors="skip")  # 2 errors
    translator.translate(["x"])[0][0].txt  # 3 txt
    next(translator.translate_iter(["x"])) + 1  # 4 __add__
    engine.submit(["x"])  # 5 submit
    translator.translate(["x"], constraints=["bandage"])  # 6 ListOf
    translator.translate("x")  # 7 translate
    translator.translate(["x"], avoid="bandage")  # 8 translate
    translator.translate(["x"], prefixes="bandage")  # 9 translate
    translator.translate_iter(["x"], constraints=["bandage"])  # 10 ListOf
    translator.translate_text("x", format="htlm")  # 11 format
    translator.translate_text("x", protect="bandage")  # 12 protect
    translator.score("x", ["x"])  # 13 score
    engine.submit("x", constraints="bandage")  # 14 constraints
    engine.submit("x", any_of=["bandage"])  # 15 ListOf
    engine.submit_text("x", format="htlm")  # 16 format
"""  # noqa: E501


@drawn(0)  # long
def test_a_type_checker_takes_right_arguments_and_refuses_wrong_ones(tmp_path):
    """In the package's folder, whose mypy cache is warm where mypy has run before the tests,
    as in scripts/test.sh."""
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", tmp_path / "snippet.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    found = re.findall("^.*snippet.py.*: error:.*$", done.stdout, re.M)
    planted = [
        (i, line.split("# ")[1].split()[1])
        for i, line in enumerate(SNIPPET.splitlines(), 1)
        if "# " in line
    ]
    assert [int(line.split(":")[1]) for line in found] == [i for i, _ in planted], (
        done.stdout + done.stderr
    )
    for line, (_, word) in zip(found, planted, strict=True):
        assert word in line


def test_the_package_says_that_it_is_typed():
    assert (Path(fairseq_ext.__file__).parent / "py.typed").is_file()


def test_the_version_is_written_once():
    """setup.py takes it from the package."""
    command = [sys.executable, "setup.py", "--version"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout
    assert said.split()[-1] == fairseq_ext.__version__
