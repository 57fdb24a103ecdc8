"""scripts/experiments/run.sh and publish.py, and what scripts/docs.py says of results that
are older than their code."""

import shlex
import sys

import pytest
import warm
from conftest import ran, table
from demo_model import MODEL, ROOT
from sizes import drawn

RUN = ROOT / "scripts" / "experiments" / "run.sh"
sys.path[:0] = [str(ROOT / "scripts"), str(RUN.parent)]

import publish  # noqa: E402
import report  # noqa: E402
from documents import ages  # noqa: E402


def run(*arguments, check=False):
    return ran(RUN, *arguments, check=check, PYTHON=warm.python(), timeout=900)


DEMO = ["--model", MODEL, "--text", ROOT / "data" / "demo" / "test"]
DBA = (
    "--beams 2 --table-beam 2 --gbs 1 --prune 3 --time-tokens 1 3 --most 1 --rounds 2 "
    "--max-len 1 5 --sets rand1 rand2 rand3 phr3 --figure4-beams 2 --figure4-least 1 --time-paper "
    "--example 2 --trace 1"
)


@drawn(0)  # long
def test_one_paper_is_run_and_published(tmp_path):
    where = ["--out", tmp_path / "out", "--name", "tiny", "--into", tmp_path]
    words = [*DEMO, "--only", "dba", "--limit", "3", *where, "--", *DBA.split()]
    # of the checkout that gets the results: its documents are filled
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "docs.py").write_text(
        "import sys\nopen(__file__.replace('docs.py', 'told'), 'w').write(str(sys.argv[1:]))\n"
    )
    for _ in range(2):  # the second run finds everything done, and the page has one section still
        done = run(*words, "--example-words", "banana; red house", check=True)
    source = "scripts/experiments/dba/results/tiny/tables.md"
    text = (tmp_path / source).read_text()
    parts = ["| rand1 |", "fairseq 0.12.2", "python 3.", "signatures", "--limit 3", "| finished |"]
    parts.append("select:dba,dba_allocation=paper|stop:ranked")
    assert [part for part in parts if part not in text] == []
    assert str(tmp_path) not in text and str(ROOT) not in text
    page = (tmp_path / "docs/results/dba.md").read_text()
    assert page.count(f"<!-- generated: results {source} -->") == 1 == page.count("## tiny")
    assert (tmp_path / source).with_name("figure4.svg").exists()
    assert (tmp_path / "scripts" / "told").read_text() == "['--write', '--quick']"
    assert "rand1.beam" not in done.stderr  # nothing was searched again


@drawn(0)  # long
def test_fairseqs_constrained_search_is_run_next_to_ours(tmp_path):
    where = ["--out", tmp_path / "out", "--name", "tiny", "--into", tmp_path]
    small = [*DEMO, "--only", "constrained", "--limit", "3", *where, "--", "--beams", "2"]
    run(*small, "--stock-sets", "rand1", check=True)
    text = (tmp_path / "scripts/experiments/constrained/results/tiny/tables.md").read_text()
    assert "2 signatures" in text and "constraints:unordered" in text
    assert text.count("| rand1 | 2 |") == 2
    # too short for four words
    done = run(*small, "--stock-sets", "rand4", "--max-len-b", "2")
    said = "fairseq's constrained search stopped at its length limit (step 2) with words unmet"
    assert done.returncode == 1 and done.stderr.strip().endswith(f"rand4 at beam 2: {said}")


@pytest.mark.parametrize(("arguments", "said"), table("scripts/commands.tsv", "run.sh"))
def test_what_cannot_work_is_refused_in_a_sentence(arguments, said):
    done = run(*shlex.split(arguments.replace("DEMO", shlex.join(map(str, DEMO)))))
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_paths_are_cut_to_their_last_two_names():
    for place, shown in table("scripts/commands.tsv", "place"):
        assert (
            publish.without_places(f"run.sh --model {place} -- x") == f"run.sh --model {shown} -- x"
        )
    own = "run.sh --text /a/b --out '/c d/e' --name n --into .. -- --only 'window, pad'"
    assert publish.without_places(own) == "run.sh --text a/b --name n -- --only 'window, pad'"


@pytest.fixture
def history(tmp_path):
    """A repository with code; `commit(FILE, TEXT)` returns the new commit."""
    identity = "-c user.name=n -c user.email=e@example.org -c commit.gpgsign=false".split()

    def git(*arguments):
        return ran("git", "-C", tmp_path, *identity, *arguments).stdout.strip()

    def commit(file, text, message=""):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
        git("add", ".")
        git("commit", "-qm", f"{file}\n\n{message}")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    return commit


def test_a_table_older_than_its_code_says_so(history, tmp_path):
    file, table = "scripts/experiments/lsh/results/tables.md", "| a |\n| --- |\n"
    code = "fairseq_ext/search/strategies/softmax/index.py"

    def brackets():
        """What stands behind the file's name, its older tables, in the page's paragraph."""
        said = " ".join(ages.age(file, root=tmp_path).split())
        return said.rpartition(": results")[2].removesuffix(".").strip(" ()")

    first = history(code, "1")
    history(file, f"commit {first}\n\n## Old\n\n{table}\n## Other\n\n{table}")
    assert brackets() == ""
    history("fairseq_ext/serve/other.py", "1")  # not what it measures
    history(code, "1 # why", "No figure changes: a comment")
    assert brackets() == ""
    second = history(code, "2")
    assert brackets() == first[:7]
    history(file, f"## Old\n\n{table}\ncommit {first}\n\n## New\n\n{table}\ncommit {second}\n")
    assert brackets() == f"Old: {first[:7]}"
    history(file, table)  # which names no commit: the file's last change stands for it
    assert brackets() == ""
    history(file, f"528 MiB after 800 requests (commit {first})")  # figures in sentences
    assert brackets() == first[:7]
    history(file, f"commit {'0' * 40}\n\n{table}")
    assert brackets() == "0" * 7  # a commit that no one knows
    history(file, f"commit {second}{report.changes({'git_changed': True})}\n\n{table}")
    assert brackets() == second[:7]  # which no commit has
    scripts_only = report.changes({"git_changed": True, "package_changed": False})
    history(file, f"commit {second}{scripts_only}\n\n{table}")
    assert brackets() == "" and "scripts" in scripts_only
    other = "before: commit c16eb40.\n\n2 cores, commit 1220c29ce7c1, 2026\n"
    assert ages.COMMIT.findall(other) == ["1220c29ce7c1"]  # the one that measured


def test_every_results_page_says_how_old_its_figures_are():
    pages = [page.read_text() for page in (ROOT / "docs" / "results").glob("*.md")]
    assert len(pages) >= 10 and all(page.count("<!-- generated: age -->") == 1 for page in pages)


def test_without_matplotlib_a_paper_says_so_before_any_work(tmp_path):
    (tmp_path / "matplotlib.py").write_text(
        "raise ModuleNotFoundError('No module named matplotlib', name='matplotlib')\n"
    )
    words = [sys.executable, RUN.parent / "dba" / "run.py", "--out", tmp_path / "out"]
    done = ran(*words, check=False, PYTHONPATH=f"{tmp_path}:{ROOT}")
    said = "error: figures are drawn with matplotlib, which is not installed: pip install"
    assert done.returncode == 1 and done.stderr.startswith(said) and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
