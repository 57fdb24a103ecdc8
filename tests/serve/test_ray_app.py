"""The server on Ray Serve: two replicas, one of them killed under load, and no request is lost."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from forked import forked
from serving import FLAGS, ROOT, TSV

from fairseq_ext import Translator
from fairseq_ext.engine.jobs import Answer, Work
from fairseq_ext.engine.tickets import Busy, WorkerDied
from fairseq_ext.loading.arguments import as_arguments
from fairseq_ext.translation import Translation

pytest.importorskip("grpc", reason="no Ray Serve: pip install 'ray[serve]'")
from ray.exceptions import RayActorError  # noqa: E402

from fairseq_ext.serve import replicas as replicas_module  # noqa: E402
from fairseq_ext.serve.ray_app import main  # noqa: E402
from fairseq_ext.serve.replicas import Replica, Replicas  # noqa: E402

NEEDED = ["--path", FLAGS["path"], "--data", FLAGS["data"], "-s", "de", "-t", "en", "--cpu", "--beam", "2"]
SEGMENTED = {"bpe": "sentencepiece", "sentencepiece_model": FLAGS["sentencepiece_model"]}
MARK = f"FAIRSEQ_EXT_MARK={uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of a server with two replicas, started by the command; it ends at SIGTERM with status 0."""
    said = tmp_path_factory.mktemp("ray") / "stderr"
    command = [sys.executable, "-m", "fairseq_ext.serve.ray_app", *NEEDED, *as_arguments(SEGMENTED), "--replicas", "2", "--port", "0"]
    name, _, value = MARK.partition("=")
    with said.open("w") as log:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), name: value}
        process = subprocess.Popen([*command, "--glossary-folder", str(said.parent / "kept")], stderr=log, stdout=log, env=environment)
    try:
        end = time.monotonic() + 240
        while "ready:" not in said.read_text() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        found = re.search(r"listening on (http://\S+?);", said.read_text())
        assert found, said.read_text()
        yield found[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, said.read_text()
    finally:
        process.kill()


@pytest.fixture(scope="module")
def expected(lines):
    made = Translator(FLAGS["path"], FLAGS["data"], source_lang="de", target_lang="en", cpu=True, beam=2, **SEGMENTED)
    return {line: found[0].text for line, found in zip(lines, made.translate(lines), strict=True)}


def replicas() -> list[int]:
    """The processes of the decoder's replicas that this module has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"Decoder" in (process / "cmdline").read_bytes() and MARK.encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            pass
    return found


def test_no_request_is_lost_when_a_replica_is_killed_under_load(url, expected):
    both = replicas()
    assert len(both) == 2
    answers: dict[int, str] = {}
    wanted = [line for _ in range(12) for line in expected]

    def ask(number: int) -> None:
        body = {"source": wanted[number]}
        if number % 4:
            response = httpx.post(f"{url}/v1/translate", json=body, timeout=180)
            answer = response.json()
        else:
            *_, last = httpx.post(f"{url}/v1/translate/stream", json=body, timeout=180).text.strip().split("data: ")
            answer = json.loads(last)
        assert number not in answers
        answers[number] = answer.get("text", answer)

    with ThreadPoolExecutor(12) as pool:
        asked = pool.map(ask, range(len(wanted)))
        while len(answers) < len(wanted) // 4:
            time.sleep(0.01)
        os.kill(both[0], signal.SIGKILL)
        list(asked)
    assert answers == dict(enumerate(expected[line] for line in wanted))
    end = time.monotonic() + 120
    while both[0] in replicas() or len(replicas()) < 2:
        assert time.monotonic() < end, "the replica is not replaced"
        time.sleep(0.2)


def test_the_api_is_the_same(url, expected):
    line = next(iter(expected))
    with httpx.Client(base_url=url, timeout=120) as client:
        assert client.get("/ready").json() == {"status": "ready"} and client.get("/v1/model").json()["beam"] == 2
        found = client.post("/v1/translate", json=[{"source": line, "id": 1}, {"source": line, "nbest": 3, "id": 2}]).json()
        assert found[0]["text"] == expected[line]
        assert found[1] == {"id": 2, "error": "nbest is 3 and the beam is 2: ask for 1 to 2 hypotheses"}
        assert client.post("/translate", json={"q": line, "source": "de", "target": "en"}).json() == {"translatedText": expected[line]}
        assert client.put("/v1/glossaries/clinic", content="Patient\temployee\n", headers=TSV).status_code == 201
        named = client.post("/v1/translate", json={"source": "Der Patient hat einen Port.", "glossary": "clinic"}).json()
        assert "employee" in named["text"] and client.get("/v1/glossaries").json() == {"glossaries": ["clinic"]}
        metrics = client.get("/metrics").text
        assert float(re.search(r"^fairseq_ext_sentences_total (\S+)$", metrics, re.M)[1]) > 1
        assert client.get("/").text.startswith("<!DOCTYPE html>")


class Handle:
    """A deployment whose replicas die over every request, so many times."""

    def __init__(self, deaths: int):
        self.left, self.translate = deaths, self

    async def remote(self, request: dict):
        self.left -= 1
        if self.left >= 0:
            raise RayActorError
        return "name", Work(sentences=1), Answer([Translation(request["source"], [], 0.0, [])])


def test_a_request_over_which_replicas_die_runs_again_and_at_last_has_the_error(monkeypatch):
    monkeypatch.setattr(replicas_module, "PAUSE", 0.0)

    async def asked(deaths: int) -> tuple[object, int]:
        engine = Replicas(Handle(deaths), {}, max_queue=1)  # type: ignore[arg-type]
        future = asyncio.wrap_future(engine.submit("a"))
        with pytest.raises(Busy, match="1 requests are waiting"):
            engine.submit("b")
        (found,) = await asyncio.gather(future, return_exceptions=True)
        return found, engine.restarts

    found, restarts = asyncio.run(asked(2))
    assert found.text == "a" and restarts == 2
    error, restarts = asyncio.run(asked(100))
    assert str(error) == "the sentence could not be translated: 5 replicas died over it" and isinstance(error, WorkerDied)


def test_a_replica_without_a_model_says_why():
    made = Replica({"path": "/nowhere.pt", "data": FLAGS["data"], "source_lang": "de", "target_lang": "en", "cpu": True}, None, 1)
    assert str(asyncio.run(made.describe())).startswith("Model file not found: /nowhere.pt")
    made.engine.close()
    with pytest.raises(RuntimeError, match="the engine is closed"):
        made.check_health()


def test_what_cannot_be_is_refused_in_one_sentence():
    for arguments, sentence in [
        (["--replicas", "0"], "--replicas 0 to --max-replicas 0 is no range: use 1 or more, and the larger number last"),
        (["--replicas", "3", "--max-replicas", "2"], "--replicas 3 to --max-replicas 2 is no range"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 opens the server to others and no keys are given: add --api-keys FILE"),
        (["--address", "127.0.0.1:1"], "no Ray cluster answers at --address 127.0.0.1:1: start one with ray start --head"),
    ]:
        done = forked(main, "ray_app", *arguments, *NEEDED)
        assert done.status == 1 and done.stderr.splitlines()[-1].startswith(f"error: {sentence}"), (arguments, done)
