"""The tasks of fairseq's examples/ that search for words have twins, once their
--user-dir registers them."""

import pytest
import task_models
from forked import generate_forked, interactive_forked
from sizes import drawn
from test_tasks_cli import rows, same_rows


@drawn(1)
@pytest.mark.parametrize("name", task_models.EXAMPLES)
def test_the_twin_of_an_example_equals_stock_and_meets_constraints(name, tmp_path):
    made = task_models.make(name, tmp_path)
    stock = generate_forked(*made.stock, "--beam", 5).stdout
    same_rows(stock, generate_forked(*made.ours, "--beam", 5).stdout)
    out = interactive_forked(
        "w1 w2 w3\tw20\nw4\tw21\n", *made.ours, "--buffer-size", 4, "--constraints"
    ).stdout
    assert [f"w{20 + i}" in words.split() for i, (_, _, words) in enumerate(rows(out, "H"))] == [
        True,
        True,
    ]
