"""A corpus run over two nodes, one of which goes away."""

import atexit
import os

import pytest
from corpus_jobs import DEMO, FLAGS, job, meanwhile, parts, records, source_lines, write_text
from ray.cluster_utils import Cluster
from sizes import drawn

from fairseq_ext import Translator, UsageError
from fairseq_ext.corpus import scheduler
from fairseq_ext.corpus.run import translate

REPEATED = 15  # a worker of a lost node may go on for some seconds: the job must outlast them
# what Ray does at the end: a forked child forgets its parent's (forked.py), and Ray's
# clients do not outlive that
HELD = []


@pytest.fixture
def cluster(monkeypatch):
    register = atexit.register
    monkeypatch.setattr(
        atexit,
        "register",
        lambda function, *given, **named: (
            HELD.append(function) or register(function, *given, **named)
        ),
    )
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"object_store_memory": 80 << 20}
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small}
    )
    made.nodes_to_lose = [made.add_node(num_cpus=1, **small) for _ in range(2)]
    yield made
    made.shutdown()


@drawn(0)  # long
def test_a_node_that_goes_away_takes_nothing_with_it(cluster, tmp_path):
    lines = source_lines(0, 400)
    path, out = write_text(tmp_path / "a.txt", lines * REPEATED), tmp_path / "out"
    lost = []

    def lose():
        if len(parts(out)) >= 3:
            lost.append(len(parts(out)))
            cluster.remove_node(cluster.nodes_to_lose[1], allow_graceful=False)
        return lost

    with meanwhile(lose):
        done = translate(job([path], out, address=cluster.address, workers=None))
    expected = Translator(str(DEMO / "checkpoint.pt"), str(DEMO), **FLAGS).translate(lines)
    assert lost and lost[0] < 40 * REPEATED and done.workers == 2 and done.restarts >= 1
    assert [r["hypotheses"] for r in records(out / "a.jsonl")] == [
        [h.text for h in nbest] for nbest in expected
    ] * REPEATED
    assert (done.errors, done.sentences_before, done.sentences, parts(out)) == (
        0,
        0,
        400 * REPEATED,
        [],
    )


@drawn(0)  # long
def test_a_run_whose_nodes_are_all_gone_ends_and_keeps_what_is_finished(
    cluster, tmp_path, monkeypatch
):
    """The node that is left has no processor for workers."""
    monkeypatch.setattr(scheduler, "WITHOUT_NODES", 2.0)
    path, out = write_text(tmp_path / "a.txt", source_lines(0, 400) * REPEATED), tmp_path / "out"

    def lose():
        if len(parts(out)) < 3:
            return False
        for node in cluster.nodes_to_lose:
            cluster.remove_node(node, allow_graceful=False)
        return True

    said = "all nodes of Ray on which workers could run are gone"
    with meanwhile(lose), pytest.raises(UsageError, match=said):
        translate(job([path], out, address=cluster.address, workers=None))
    assert len(parts(out)) >= 3
