"""docs/reliability.md: every test that it names is there, and each catalogue
of attacks is named."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMED = set(
    re.findall(
        r"`((?:tests|scripts)/[\w/]+\.\w+)`",
        (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"),
    )
)


def test_every_test_that_the_page_names_is_there():
    assert len(NAMED) > 20 and [name for name in sorted(NAMED) if not (ROOT / name).is_file()] == []


def test_the_page_names_every_catalogue_of_attacks():
    assert {
        f"tests/attack/{path.name}" for path in (ROOT / "tests" / "attack").glob("test_*.py")
    } <= NAMED
