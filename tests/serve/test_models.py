"""Several models behind one server: loaded at first use, dropped for others, one after another;
the command as it is typed."""

import asyncio
import functools
import shutil
import threading
from concurrent.futures import Future

import pytest
from demo_model import MODEL as DEMO
from serving import libre, metric, until

from fairseq_ext import Translator
from fairseq_ext.engine.tickets import Busy
from fairseq_ext.search.report import Translation
from fairseq_ext.search.request import Request
from fairseq_ext.serve import Settings, models
from fairseq_ext.serve.records import Text
from fairseq_ext.serve.service import Service

FIRST, SECOND = "Das Angebot wird morgen geprüft.", "Die Ärztin öffnet den Ordner."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """de-en, the demo; en-fr, the same model under other names of languages;
    and what is no model."""
    root = tmp_path_factory.mktemp("models")
    for name in ("de-en", "en-fr"):
        copy(name, root)
    (root / "notes").mkdir()
    return root


def through(folder, text):
    """A text in English, and that in French."""
    out = [text]
    for source, target in (("de", "en"), ("en", "fr")):
        flags = {"cpu": True, "source_lang": source, "target_lang": target}
        model = Translator.from_folder(folder / f"{source}-{target}", **flags)
        out.append(model.translate(out[-1:])[0][0].text)
    return out[1:]


def test_one_folder_a_pair(started, folder, tmp_path):
    """With one place each pair drops the other, and counts are kept; nothing is loaded
    before it is requested."""
    flags = f"--models {folder} --max-models 1 --glossary-folder {tmp_path}"
    _, client, said = started(*flags.split())
    assert "ready: de-en, en-fr\n" in said
    assert client.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": ["fr"]},
        {"code": "fr", "name": "French", "targets": []},
    ]
    assert metric(client, "models") == 0
    middle, end = through(folder, FIRST)
    for source, target, text, expected in (
        ("auto", "en", FIRST, middle),
        ("en", "fr", middle, end),
        ("auto", "en", FIRST, middle),
    ):
        found = libre(client, text, source=source, target=target)
        assert found["translatedText"] == expected and metric(client, "models") == 1
    assert metric(client, "sentences_total") == 3, "of engines that are gone, too"
    said = "French (fr) is not available as a target language from German (de)"
    assert libre(client, FIRST, target="fr") == {"error": said}
    for query, sentence in (
        ("", "this server translates de-en, en-fr: name one"),
        ("?source=de&target=fr", "this server translates"),
    ):
        refused = client.post(f"/v1/translate{query}", json={"source": FIRST})
        assert refused.status_code == 400 and refused.json()["error"].startswith(sentence)
    record = {"source": FIRST, "glossary": {"Angebot": "quotation"}}
    found = client.post("/v1/translate?source=de", json=record).json()
    assert "quotation" in found["text"]
    path, curl = "/v1/glossaries/x?source=de&target=en", {"X-Requested-With": "x"}
    assert client.put(path, content=b"Ordner\tfile\n", headers=curl).is_success
    assert client.get("/v1/glossaries?source=de&target=en").json() == {"glossaries": ["x"]}
    assert client.get("/v1/glossaries?source=en&target=fr").json() == {"glossaries": []}
    assert (tmp_path / "de-en" / "x.tsv").is_file()


def copy(pair, root):
    """A folder of the demo's model under the name of this pair."""
    (root / pair).mkdir(parents=True)
    for file in ("checkpoint.pt", "spm.model"):
        (root / pair / file).symlink_to(DEMO / file)
    for ours, theirs in zip(pair.split("-"), ("de", "en"), strict=True):
        shutil.copy(DEMO / f"dict.{theirs}.txt", root / pair / f"dict.{ours}.txt")


def offered(client):
    """The pairs that are served, as every route names them; none where they differ."""
    pairs = client.get("/v1/model?source=de&target=en").json()["pairs"]
    targets = {each["code"]: each["targets"] for each in client.get("/languages").json()}
    said = client.post("/v1/translate?source=zz", json={"source": FIRST}).json()["error"]
    named = ["-".join(pair) for pair in pairs]
    is_same = {(s, t) for s, t in pairs} == {(s, t) for s in targets for t in targets[s]}
    return named if is_same and f"translates {', '.join(named)}: name one" in said else []


def test_a_broken_folder_stops_no_other(started, tmp_path):
    """What is wrong is seen when the folder is read, or, of weights, at the first request."""
    root = tmp_path / "models"
    for pair in ("de-en", "aa-en", "bb-en", "cc-en", "dd-en"):
        copy(pair, root)
    for file in (root / "aa-en").iterdir():
        file.unlink()
    (root / "bb-en" / "checkpoint.pt").unlink()
    (root / "bb-en" / "checkpoint.pt").write_bytes(b"no checkpoint")
    (root / "cc-en" / "dict.cc.txt").unlink()
    (root / "dd-en" / "dict.dd.txt").write_text("a 1\n", encoding="utf-8")
    _, client, said = started("--models", str(root))
    for pair in ("aa-en", "bb-en", "cc-en"):
        (line,) = (line for line in said.splitlines() if line.startswith(f"{pair} is not served: "))
    assert "ready: dd-en, de-en\n" in said and "Traceback" not in said
    assert offered(client) == ["dd-en", "de-en"]
    requested = {"q": FIRST, "source": "dd", "target": "en"}
    refused = client.post("/translate", json=requested)
    assert refused.status_code == 503
    assert refused.json()["error"].startswith("the model dd-en cannot be loaded: ")
    assert libre(client, FIRST, source="cc") == {"error": "cc is not supported"}
    at = "/v1/translate?source=de&target=en"
    assert client.post(at, json={"source": FIRST}).json()["text"], "de-en is not affected"


async def stays():
    """The client is there."""


def in_a_loop(test):
    """Run a test that is a coroutine, for 30 seconds at most."""

    @functools.wraps(test)
    def run(*given, **named):
        asyncio.run(asyncio.wait_for(test(*given, **named), 30))

    return run


class Pretended:
    """An engine that loads and answers when the test says so."""

    def __init__(self, path, **flags):
        self.path, self.is_closed = path, False
        self.loaded: Future = Future()
        self.loaded.set_running_or_notify_cancel()
        self.submitted: list[Future] = []
        made.append(self)

    def send(self, request, on_partial=None):
        assert not self.is_closed
        self.submitted.append(Future())
        return self.submitted[-1]

    @property
    def pending(self):
        return not all(each.done() for each in self.submitted)

    def answer(self, number, text):
        self.submitted[number].set_result(models.Report([Translation(text, [], 0.0, [])]))

    def work(self):
        return models.Work(sentences=1)

    def close(self):
        self.is_closed = True


made = []
DESCRIPTION = models.Description("", "y", "z", 1, 1, 1, 100, "")


@pytest.fixture
def pretended(folder, monkeypatch):
    """Models x-y, y-z and a-b, of which two may be loaded."""
    monkeypatch.setattr(models, "Engine", Pretended)
    monkeypatch.setattr(models, "CLOSES", 0)
    made.clear()
    found = models.ModelsOfFolder(folder, {}, 2)
    found.flags_of = {(s, t): {"path": s + t} for s, t in ("xy", "yz", "ab")}
    yield found
    found.close()


async def use(found, pair, text="", waits=stays):
    """Use the model of a pair; the future of a text, if there is one, else the description."""
    async with found.using(tuple(pair), waits) as model:
        return model.submit(Request(source=text)) if text else model.description


@in_a_loop
async def test_a_model_is_dropped_where_memory_is_short(pretended, monkeypatch):
    """The one that was used longest ago, of those that no one uses; where all are in use,
    the system has to see."""
    memory = [2]  # models that there is room for

    class Loaded(Pretended):
        def __init__(self, path, **flags):
            super().__init__(path)
            self.loaded.set_result(path)
            memory[0] -= 1

        def close(self):
            memory[0] += 1

    monkeypatch.setattr(models, "Engine", Loaded)
    monkeypatch.setattr(models, "available", lambda: memory[0] * models.BASE * 2)
    pretended.most = None

    async def loaded(*pairs):
        """The models that are there when the first was used, and inside of that the second."""
        async with pretended.using(tuple(pairs[0]), stays):
            if pairs[1:]:
                await loaded(*pairs[1:])
        return ["".join(pair) for pair in pretended.engines]

    assert await loaded("xy") == ["xy"] and await loaded("ab") == ["xy", "ab"]
    assert await loaded("xy") == ["ab", "xy"]
    assert await loaded("yz") == ["xy", "yz"], "a-b was used longest ago"
    assert pretended.work().sentences == 3
    assert await loaded("xy", "ab") == ["xy", "ab"], "x-y was in use"
    assert len(await loaded("xy", "ab", "yz")) == 3


@in_a_loop
async def test_no_model_is_loaded_for_a_client_that_has_gone(pretended):
    """It has waited for its turn, while another model was loaded."""

    class Left(Exception):
        pass

    async def has_gone():
        assert [each.path for each in made] == ["xy"], "the first model is there"
        raise Left

    first = asyncio.ensure_future(use(pretended, "xy"))
    await asyncio.sleep(0)
    with pytest.raises(Left):
        await use(pretended, "ab", waits=has_gone)
    made[0].loaded.set_result(None)
    await first
    assert len(made) == 1 and not made[0].is_closed and not pretended.users


@in_a_loop
async def test_requests_for_a_model_that_is_loading_hold_no_thread_and_no_other_model(pretended):
    """60 of them, more than the server has threads; some hang up meanwhile."""
    threads = threading.active_count()
    waiting = [asyncio.ensure_future(use(pretended, "xy")) for _ in range(60)]
    await asyncio.sleep(0.05)
    assert len(made) == 1 and threading.active_count() <= threads
    for each in waiting[::3]:
        each.cancel()
    other = asyncio.ensure_future(use(pretended, "ab"))
    await asyncio.sleep(0.05)
    made[1].loaded.set_result("a-b")
    assert await asyncio.wait_for(other, 5) == "a-b" and not any(
        each.done() and not each.cancelled() for each in waiting
    )
    made[0].loaded.set_result("x-y")
    found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert found.count("x-y") == 40 and not pretended.users


@in_a_loop
async def test_a_model_that_cannot_be_loaded_is_dropped_once_and_tried_again(pretended):
    first = [asyncio.ensure_future(use(pretended, "xy")) for _ in range(3)]
    await asyncio.sleep(0)
    made[0].loaded.set_exception(models.UsageError("no file"))
    for each in first:
        with pytest.raises(models.HTTPException, match="cannot be loaded"):
            await each
    second = asyncio.ensure_future(use(pretended, "xy"))
    await asyncio.sleep(0.01)
    made[1].loaded.set_result("x-y")
    await second
    assert len(made) == 2 and made[0].is_closed and not made[1].is_closed


@in_a_loop
async def test_a_text_keeps_its_model_between_two_of_its_sentences(pretended):
    """Behind the request's context, as a stream does; the queue has no room for both at once."""
    counts = []

    async def submitted():
        async with pretended.using(("x", "y"), stays) as model:
            text = Text(Request(source="Eins.\nZwei."))
            return Service(pretended, Settings()).submit(model, text)

    def narrow(request, on_partial):
        counts.append(len(pretended.users))
        if made[0].pending:
            raise Busy(1, 1.0)
        return send(request)

    waiting = asyncio.ensure_future(submitted())
    await asyncio.sleep(0.01)
    send, made[0].send = made[0].send, narrow
    made[0].loaded.set_result(DESCRIPTION)
    running = await waiting
    made[0].answer(0, "end")
    assert await asyncio.to_thread(until, lambda: len(made[0].submitted) == 2)
    assert counts[-1] == 1, "the text"
    made[0].answer(1, "end")
    assert (await asyncio.wrap_future(running)).text == "End\nEnd"
    assert await asyncio.to_thread(until, lambda: not pretended.users)
