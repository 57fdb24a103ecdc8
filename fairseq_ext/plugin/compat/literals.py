"""Reads a configuration string as a literal: what fairseq's `eval` is replaced by, because a checkpoint's strings could run code.

fairseq writes lists such as `[(512, 3)] * 9 + [(1024, 3)] * 4` into a model's settings and evaluates them when it builds the model.
`literal` gives such strings the value that `eval` gives them: constants, lists, tuples, sets and dictionaries, sums, differences and
products of numbers, sums of lists or of tuples, and a list or tuple times a whole number. It refuses everything else. This module
imports the standard library only: startup.py loads it by its path while fairseq is being imported.
"""

import ast
import operator
from collections.abc import Callable
from types import ModuleType

MOST_CHARACTERS = 10_000  # of a string; fairseq's longest default has under 200
MOST_ITEMS = 10_000  # of one list
SHOWN = 80  # characters of a refused string that the message quotes
SIGNS: dict[type, Callable] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
OPERATORS: dict[type, Callable] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
CONTAINERS: dict[type, Callable] = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
NUMBERS, SEQUENCES = (int, float), (list, tuple)
WORDS = {
    ast.Call: "a call",
    ast.Name: "a name",
    ast.Attribute: "an attribute",
    ast.Subscript: "a subscript",
    ast.Lambda: "a function",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.JoinedStr: "a formatted string",
    ast.NamedExpr: "an assignment",
}


class Refused(ValueError):
    """A configuration string that is no literal; the text is one sentence."""


def replace_eval(module: ModuleType) -> None:
    """Give a module of fairseq another `eval`, before it runs: the strings that fairseq evaluates come from checkpoints."""
    module.eval = literal  # type: ignore[attr-defined]


def literal(text: str, *scopes: object) -> object:
    """The value of a configuration string. `scopes`: the mappings that `eval` takes; a literal needs none.

    Errors: TypeError if `text` is no string, as from `eval` (fairseq's eval_bool relies on it); Refused for anything but a literal.
    """
    if not isinstance(text, str):
        raise TypeError(f"a configuration string is expected, not {type(text).__name__}")
    try:
        if len(text) > MOST_CHARACTERS:
            raise Refused(f"it has more than {MOST_CHARACTERS} characters")
        return value(ast.parse(text.strip(), mode="eval").body)
    except (Refused, SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        why = str(error) if isinstance(error, Refused) else "it cannot be read"
        shown = ascii(text if len(text) <= SHOWN else text[:SHOWN] + "...")
        raise Refused(
            f"the setting {shown} is not evaluated because {why}: only numbers, lists and their sums and products are; "
            "do not trust a checkpoint that holds another expression, or set the value with --model-overrides"
        ) from None


def value(node: ast.AST) -> object:
    """The value of one part of a parsed string."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return CONTAINERS[type(node)]([value(item) for item in node.elts])
    if isinstance(node, ast.Dict) and None not in node.keys:  # None: `**other`
        return {value(name): value(item) for name, item in zip(node.keys, node.values, strict=True) if name is not None}
    if isinstance(node, ast.UnaryOp) and type(node.op) in SIGNS:
        number = value(node.operand)
        if isinstance(number, NUMBERS):
            return SIGNS[type(node.op)](number)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return combined(type(node.op), value(node.left), value(node.right))
    called = f" of {ast.unparse(node.func)[:SHOWN]}" if isinstance(node, ast.Call) else ""
    named = f" ({node.id[:SHOWN]})" if isinstance(node, ast.Name) else ""
    raise Refused(f"it holds {WORDS.get(type(node), f'an expression ({type(node).__name__})')}{called}{named}")


def combined(kind: type, left, right) -> object:
    """A sum, difference or product of two numbers, a sum of two lists or tuples, or a list or tuple times a whole number."""
    if isinstance(left, NUMBERS) and isinstance(right, NUMBERS):
        return OPERATORS[kind](left, right)
    if kind is ast.Add and type(left) is type(right) and isinstance(left, SEQUENCES):
        length = len(left) + len(right)
    elif kind is ast.Mult and isinstance(left, SEQUENCES) and isinstance(right, int):
        length = len(left) * right
    elif kind is ast.Mult and isinstance(right, SEQUENCES) and isinstance(left, int):
        length = len(right) * left
    else:
        raise Refused("it adds or multiplies something else than numbers and lists")
    if length > MOST_ITEMS:
        raise Refused(f"it makes a list of more than {MOST_ITEMS} items")
    return OPERATORS[kind](left, right)
