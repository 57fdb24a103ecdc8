"""A program that holds a Translator and an Engine, forks, and forgets them: `python long_lived.py
MODEL RESULT PART...`. What it found of each part is a JSON object in the file RESULT."""

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch

import fairseq_ext
from fairseq_ext import Engine, Translator

MODEL, RESULT, *PARTS = sys.argv[1:]
FLAGS = dict(
    path=f"{MODEL}/checkpoint.pt",
    data=MODEL,
    source_lang="de",
    target_lang="en",
    bpe="sentencepiece",
    sentencepiece_model=f"{MODEL}/spm.model",
    cpu=True,
    beam=2,
)
LINES = ["Das Angebot wird morgen geprüft.", "Die Ärztin öffnet den Ordner."]
LONGEST = 60  # seconds of a child
gc.freeze()  # to look through what is imported takes a second of each child's end


def texts(translator):
    return [nbest[0].text for nbest in translator.translate(LINES)]


def in_a_child(run):
    """What a function returns in a forked process, or its error, with the seconds that it took;
    the signal that ended the process, where it did not return."""
    path = f"{RESULT}.child"
    Path(path).unlink(missing_ok=True)
    child = os.fork()
    if not child:
        signal.alarm(LONGEST)
        start = time.monotonic()
        try:
            found = run()
        except Exception as error:
            found = [type(error).__name__, str(error)]
        Path(path).write_text(json.dumps([found, time.monotonic() - start]))
        sys.exit(0)  # as a program that ends: exit handlers run
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(Path(path).read_text()) if status == 0 else ["status", status]


def forks():
    torch.set_num_threads(2)
    torch.mm(torch.ones(500, 500), torch.ones(500, 500))  # starts torch's threads
    translator = Translator(**FLAGS)
    found = {"expected": texts(translator)}
    found["after a load"] = in_a_child(lambda: texts(translator))
    found["made in a child"] = in_a_child(lambda: texts(Translator(**FLAGS)))
    many = []
    thread = threading.Thread(target=lambda: many.extend(translator.translate(LINES * 100)))
    thread.start()
    while translator.lock.acquire(blocking=False):  # it has not begun
        translator.lock.release()
        time.sleep(0.001)
    found["during a call"] = in_a_child(lambda: texts(translator))
    found["during a call, another"] = in_a_child(lambda: texts(Translator(**FLAGS)))
    thread.join()
    found["the parent"] = sorted({nbest[0].text for nbest in many})
    found["two threads of a child"] = in_a_child(lambda: two_threads(translator))
    return found


def two_threads(translator):
    out = []
    threads = [threading.Thread(target=lambda: out.append(texts(translator))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def engines():
    engine = Engine(**FLAGS)
    engine.wait(60)
    found = {}
    server = engine.fork_server.process.pid
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    future = engine.submit(LINES[1])
    del engine
    gc.collect()
    found["a future alone"] = future.result(60).text
    del future
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(alive(pid) for pid in (server, *children)):
        gc.collect()
        time.sleep(0.05)
    found["left"] = [pid for pid in (server, *children) if alive(pid)]
    return found


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and ") Z " not in stat.read_text()


def daemon():
    """As a daemon, which closes what it was started with."""
    for fd in range(3):
        os.close(fd)
    return streams()


def no_streams():
    sys.stdin = sys.stdout = sys.stderr = None  # type: ignore[assignment]
    return streams()


def streams():
    """All that works without standard streams."""
    import fairseq_cli.interactive  # noqa: F401  as a program that uses more of fairseq

    found = {"streams": [each is None for each in (sys.stdout, sys.stderr)]}
    translator = Translator(**FLAGS)
    found["translator"] = texts(translator)
    if sys.stderr is None:
        found["progress"] = translator.translate(LINES, progress=True)[0][0].text
    found["workers"] = texts(Translator(**FLAGS, cpu_workers=2))
    found["text"] = translator.translate_text(" ".join(LINES)).text
    with Engine(**FLAGS, cpu_workers=2) as engine:
        engine.wait(60)
        found["engine"] = [engine.submit(line).result(60).text for line in LINES]
    return found


if __name__ == "__main__":
    assert fairseq_ext
    try:
        found = {part: globals()[part]() for part in PARTS}
    except Exception:
        found = {"error": traceback.format_exc()}
    Path(RESULT).write_text(json.dumps(found))
