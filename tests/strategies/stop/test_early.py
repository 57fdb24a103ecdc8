"""--stop early: which searches it is chosen for, and that it is fairseq's rule without constraints (test_dba.py has the rule itself)."""

import pytest
from fairseq.dataclass.configs import GenerationConfig
from models import batch, build, generators, run, same, task

from fairseq_ext.errors import UsageError


@pytest.mark.parametrize(
    ("flags", "constraints", "expected"),
    [
        ({}, None, "count"),
        ({}, "unordered", "early"),
        ({"avoid_file": __file__}, None, "early"),
        ({"select": "gbs"}, "unordered", "early"),
        ({"patience": 1}, "unordered", "count,patience=1"),
        ({"patience": 2}, "unordered", "count,patience=2"),
        ({"stop": "count"}, "unordered", "count"),
        ({"stop": "first"}, "unordered", "first"),
    ],
)
def test_constraints_choose_it_where_the_command_names_no_stop_and_no_patience(flags, constraints, expected):
    built = task("translation_ext", **flags).build_generator([build("transformer")], GenerationConfig(constraints=constraints))
    [stop] = [part for part in built.stats.signature.split("|") if part.startswith("stop:")]
    assert stop == f"stop:{expected}"


@pytest.mark.parametrize("generation", [{}, {"beam": 1}, {"nbest": 3, "lenpen": 0.6}, {"unnormalized": True}], ids=str)
def test_without_constraints_it_is_fairseqs_rule(generation):
    for flags in ({"stop": "early"}, {"stop": "early", "select": "dba"}):
        pair = generators([build("transformer", seed=3)], flags, **{"beam": 4, "max_len_b": 10, **generation})
        sample = batch([5, 3, 0, 7])
        same(run(pair.stock, sample), run(pair.ours, sample))


@pytest.mark.parametrize("patience", [1, 2])
def test_a_patience_is_of_another_rule(patience):
    with pytest.raises(UsageError, match="--patience belongs to --stop count, which is not switched on"):
        task("translation_ext", stop="early", patience=patience).build_generator([build("transformer")], GenerationConfig())
