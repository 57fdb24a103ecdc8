"""A checkpoint's settings run no code: fairseq reads them as literals, with the values that
its `eval` gives its own."""

import ast
import importlib
import pkgutil
import re
import warnings
from argparse import Namespace
from collections import Counter
from pathlib import Path

import fairseq
import forked
import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq_cli.train import cli_main as train
from sizes import drawn
from task_models import ONCE
from test_cli import EXT, generate, sentence

from fairseq_ext.plugin.compat.checkpoints import Refused, literal

ROOT = Path(fairseq.__file__).parent
# What runs or unpickles in fairseq, outside its examples, and how often; `eval` is replaced in
# every module. torch.load reads no classes since torch 2.6, np.load none by default; importlib
# reads fairseq's own folders, or the --user-dir that the user types.
TABLE = Path(__file__).with_name("fairseq_calls.tsv").read_text(encoding="utf-8")
KNOWN = {tuple(line.split("\t")[:2]): int(line.split("\t")[2]) for line in TABLE.splitlines()[1:]}
BUILTINS = {"eval", "exec", "compile", "__import__"}
DOTTED = re.compile(
    r"(torch|th|pickle|np|numpy|yaml|dill|joblib|marshal|torch\.(hub|jit|package))\.(load|loads|"
    r"unsafe_load|load_state_dict_from_url)|.*Unpickler|os\.(system|popen|exec\w*|spawn\w*)|"
    r"subprocess\.\w+|importlib\.import_module|hydra\.utils\.\w+|.*\binstantiate|runpy\.\w+"
)


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """The calls that may run something, with their names."""
    named = [
        (ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)
    ]
    return [(name, node) for name, node in named if name in BUILTINS or DOTTED.fullmatch(name)]


def test_fairseq_runs_and_unpickles_nothing_else_than_what_is_known():
    found, unsafe = Counter(), []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("examples/"):
            continue
        seen = calls(ast.parse(path.read_text(encoding="utf-8")))
        found.update((name, called) for called, _ in seen)
        given = {word.arg for _, node in seen for word in node.keywords}
        unsafe += [(name, word) for word in given & {"weights_only", "allow_pickle"}]
    assert found == KNOWN
    assert not unsafe  # no one requests torch or numpy for classes


def test_every_module_of_fairseq_evaluates_literals_only():
    checked = 0
    for name in (name for name, called in KNOWN if called == "eval"):
        try:
            module = importlib.import_module(f"fairseq.{name[:-3].replace('/', '.')}")
        except ImportError:
            continue  # it wants a package that is not installed
        assert module.eval is literal, name
        checked += 1
    assert checked > 12


def stock(text: str):
    """What Python makes of a string of fairseq's own source, names left out;
    None for other text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(text, {"__builtins__": {}})
    except Exception:
        return None


def test_fairseqs_own_strings_keep_their_values():
    """All string constants in its source, and what every architecture's defaults make of them."""
    texts = set()
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        texts |= {value for value in values if isinstance(value, str)}
    assert "[(512, 3)] * 20" in texts
    for _, name, _ in pkgutil.iter_modules([str(ROOT / "models")]):
        importlib.import_module(f"fairseq.models.{name}")
    for defaults in ARCH_CONFIG_REGISTRY.values():
        args = Namespace(data="")
        try:
            defaults(args)
        except (AttributeError, KeyError):
            pass  # it wants settings that training gives; those before are in
        texts |= {value for value in vars(args).values() if isinstance(value, str)}
    evaluated = {
        text: value
        for text in texts  # those with {} are patterns of messages
        if "{}" not in text and isinstance(value := stock(text), (list, tuple, int, float))
    }
    assert len(evaluated) > 40
    # the longest: fconv_wmt_en_fr builds its layers by adding strings up
    assert any(text.count("+") >= 4 for text in evaluated)
    for text, value in evaluated.items():
        assert literal(text) == value and type(literal(text)) is type(value), text


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('id')",
        "[open('/etc/passwd')]",
        "(lambda: 0)",
        "[x for x in ()]",
        "().__class__",
        "[1][0]",
        "f'{1}'",
        "inf",
        "(x := 1)",
        "2 ** 9",
        "{**{}}",
        "1 if 1 else 2",
        "'a' * 9",
        "[0] * 10 ** 9",
        "[0] * 1000000000",
        "[[0] * 9999] * 9999 + [0] * 9999",
        "[1] + (2,)",
        "((((",
        "(" * 9999,
        "-" * 9999 + "1",
        "1" * 9999,
        "[0]" * 9999,
        "",
        "\0",
        "1e999 - 1e999 and 1",
        "1e999 * -(1 + 1)",
        "9" * 4000 + " * 1.5",
    ],
)
def test_everything_else_is_refused_in_one_sentence(text):
    with pytest.raises(Refused, match="is not evaluated: only numbers, lists") as refused:
        literal(text)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_what_is_no_string_is_a_type_error_as_from_eval():
    """fairseq's eval_bool takes a bool by catching it."""
    for given in (True, None, [1]):
        with pytest.raises(TypeError):
            literal(given)
    assert (
        fairseq.utils.eval_bool(False, default=True) is True
        and fairseq.utils.eval_bool("False") is False
    )


# ---- real files


def planted(path: Path, arch: str, **settings) -> Path:
    """A checkpoint of plain containers, of an architecture whose settings these are."""
    of_task = dict(task="translation", source_lang="de", target_lang="en", data="")
    longest = dict(max_source_positions=40, max_target_positions=40)
    args = Namespace(arch=arch, criterion="adaptive_loss", **of_task, **longest, **settings)
    history = dict(criterion_name="CrossEntropyCriterion", optimizer_name="Adam", num_updates=1)
    state = {"model": {}, "optimizer_history": [history | dict(lr_scheduler_state={})]}
    torch.save({"args": args, "extra_state": {}, **state}, path)
    return path


FIELDS = """
fconv encoder_layers
fconv decoder_layers
fconv decoder_attention
fconv_self_att pretrained
fconv_self_att gated_attention
lstm decoder_attention
lstm adaptive_softmax_cutoff
lightconv adaptive_softmax_cutoff
transformer adaptive_softmax_cutoff
""".split("\n")[1:-1]


@drawn(5)
@pytest.mark.parametrize("field", FIELDS)
def test_no_setting_of_a_checkpoint_runs_code(tiny, tmp_path, field):
    mark = tmp_path / "code was run"
    code = f"[open({str(mark)!r}, 'w').close()]"
    eval(code)
    mark.unlink()  # the code works
    arch, setting = field.split()
    path = planted(tmp_path / "model.pt", arch, **{setting: code})
    languages = {"source_lang": "de", "target_lang": "en"}
    task = tasks.setup_task(Namespace(task="translation", data=str(tiny / "data"), **languages))
    with pytest.raises(ValueError, match="is not evaluated: only numbers"):
        checkpoint_utils.load_model_ensemble([str(path)], task=task)
    assert not mark.exists()


def test_the_command_refuses_a_planted_setting(tiny, tmp_path):
    """With our task in one sentence; with stock fairseq's, which compat also guards, at
    least without running it."""
    mark = tmp_path / "code was run"
    planted(
        tmp_path / "model.pt",
        "fconv",
        encoder_layers=f"__import__('pathlib').Path({str(mark)!r}).touch() or [(16, 3)]",
    )
    said = sentence(generate(tiny, *EXT, "--path", tmp_path / "model.pt", check=False))
    assert "__import__" in said and "is not evaluated: only numbers" in said
    stock = generate(tiny, "--path", tmp_path / "model.pt", check=False)
    assert stock.returncode and "is not evaluated: only numbers" in stock.stderr
    assert not mark.exists()


def test_training_still_takes_settings_from_the_command_line(tiny, tmp_path):
    flags = "--arch fconv --encoder-embed-dim 16 --decoder-embed-dim 16 --decoder-out-embed-dim 16"
    layers = "--encoder-layers=[(16, 3)] * 2", "--decoder-layers=[(16, 3)] * 2"
    words = [*layers, "--decoder-attention=[True, False]", "--adam-betas=(0.9, 0.98)", *ONCE]
    words = [tiny / "data", *flags.split(), *words, "--save-dir", tmp_path]
    forked.succeeded(forked.forked(train, "fairseq-train", *words))
    done = generate(tiny, "--path", tmp_path / "checkpoint_last.pt", *EXT)
    assert "H-0\t" in done.stdout
