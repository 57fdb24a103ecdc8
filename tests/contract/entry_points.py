"""The seven entry points: each takes the whole table of requests, and gives the answers."""

import contextlib
import io
import json
import re
import runpy
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from commands import (
    Entry,
    Generate,
    Interactive,
    Translate,
    as_argv,
    constrained,
    of_any_run,
    shown,
)
from corpus_jobs import one_process, start_ray

# ---- Python


class Translator(Entry):
    """fairseq_ext.Translator."""

    many = True
    gives = ("lines", "unmet")
    apart = ("terms",)

    def answer(self, rows):
        import fairseq_ext

        translator = fairseq_ext.Translator(**self.flags(rows[0], "nbest", "seed"))
        return [self.one(translator, row) for row in rows]

    def one(self, translator, row):
        if "text" in row:
            made = translator.translate_text(row["text"], row["format"])
            return {"text": made.text, "untranslated": len(made.untranslated)}
        given = {name: row[name] for name in ("nbest", "seed") if name in row}
        records = row.get("records")
        if records:
            for name, key in (("avoid", "avoid"), ("prefixes", "prefix"), ("allowed", "allowed")):
                if any(key in record for record in records):
                    given[name] = [record.get(key) for record in records]
            given["avoid"] = [each or [] for each in given.get("avoid", [()] * len(records))]
            given["constraints"] = [
                [*record.get("constraints", []), *record.get("any_of", [])] for record in records
            ]
        try:
            nbests = translator.translate(row["lines"], errors="return", **given)
        except ValueError as error:
            return {"refused": self.plain(error)}
        failed = [isinstance(each, ValueError) for each in nbests]
        found = {
            "lines": [
                {"error": self.plain(each)} if bad else [hypothesis(h) for h in each]
                for each, bad in zip(nbests, failed, strict=True)
            ]
        }
        if constrained(row):
            found["unmet"] = sorted(
                [i, *pair]
                for i, each in enumerate(nbests)
                if not failed[i]
                for pair in each[0].unmet
            )
        stats = shown(row, translator.stats.as_dict())
        return found | ({"stats": stats["stats"]} if "show" in row else {})


def hypothesis(h):
    """A hypothesis of ours; a command prints the utility behind it."""
    return [h.text, h.score, *([] if h.utility is None else [h.utility])]


class Engine(Entry):
    """fairseq_ext.Engine: all lines of a row at once."""

    many = True

    def answer(self, rows):
        import fairseq_ext

        flags = self.flags(rows[0], "nbest", "seed", "terms")
        with fairseq_ext.Engine(**flags) as engine:
            signature = of_any_run(engine.wait(180).signature)
            found = [self.one(engine, row) for row in rows]
        for row, each in zip(rows, found, strict=True):
            if "signature" in row.get("show", ()):
                each["stats"] = {"signature": signature}
        return found

    def one(self, engine, row):
        given = {name: row[name] for name in ("nbest", "seed", "terms") if name in row}
        if "text" in row:
            made = engine.submit_text(row["text"], row["format"], **given).result(180)
            return {"text": made.text, "untranslated": len(made.untranslated)}
        futures = []
        for i, line in enumerate(row["lines"]):
            record = row["records"][i] if "records" in row else {}
            try:
                futures.append(engine.submit(line, **record, **given, number=i))
            except ValueError as error:
                futures.append(error)
        lines, counts = [], []
        for future in futures:
            try:
                if isinstance(future, ValueError):
                    raise future
                made = future.result(180)
            except ValueError as error:
                lines.append({"error": self.plain(error)})
                counts.append([])
            else:
                lines.append([hypothesis(h) for h in made.hypotheses])
                counts.append([vars(each) for each in made.constraints])
        return {"lines": lines} | of_phrases(row, counts)


def of_phrases(row, counts):
    """Which phrases are met, and where they stand in the text."""
    if not constrained(row):
        return {}
    each = [(i, phrase) for i, phrases in enumerate(counts) for phrase in phrases]
    found = {
        "met": sum(p["met"] for _, p in each),
        "unmet": sorted(
            [i, p["phrase"], *filter(None, [p.get("reason")])] for i, p in each if not p["met"]
        ),
    }
    if any("spans" in p for _, p in each):
        found["spans"] = [[i, p["phrase"], [list(s) for s in p["spans"]]] for i, p in each]
    return found


# ---- processes


class Http(Entry):
    """The server's own API, a request a row."""

    many = True

    def answer(self, rows):
        flags = self.flags(rows[0], "nbest", "seed", "terms")
        command = [sys.executable, "-m", "fairseq_ext.serve", "--port", "0", *as_argv(flags)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            said, address = "", ""
            for line in process.stderr:
                if at := re.search(r"listening on (http://[^\s;]+)", line):
                    address = at[1]
                said += line
                if line.startswith(("ready:", "error:")):
                    break
            try:
                if not said.splitlines()[-1].startswith("ready:"):
                    sentence = said.splitlines()[-1].partition("error: ")[2]
                    return [{"refused": self.plain(sentence or said)} for _ in rows]
                return [self.one(address, row) for row in rows]
            finally:
                process.terminate()

    def one(self, address, row):
        own = {name: row[name] for name in ("nbest", "seed") if name in row}
        if "terms" in row:
            own["glossary"] = row["terms"]
        if "text" in row:
            made = of_server(address, own | {"source": row["text"], "format": row["format"]})
            return {"text": made["text"], "untranslated": len(made.get("untranslated", []))}
        records = row.get("records", [{}] * len(row["lines"]))
        lines = [
            own | record | {"source": line}
            for line, record in zip(row["lines"], records, strict=True)
        ]
        made = of_server(address, lines)
        if "error" in made:
            return {"refused": self.plain(made["error"])}
        found = {
            "lines": [
                {"error": self.plain(each["error"])}
                if "error" in each
                else [
                    [h["text"], h["score"], *([h["utility"]] if "utility" in h else [])]
                    for h in each["nbest"]
                ]
                for each in made
            ]
        } | of_phrases(row, [each.get("constraints", []) for each in made])
        if "signature" in row.get("show", ()):
            found["stats"] = {"signature": of_any_run(of_server(address)["signature"])}
        return found


def of_server(address, body=None):
    """An answer of the server, be it an error; without a body it describes its model."""
    request = urllib.request.Request(
        address + ("/v1/model" if body is None else "/v1/translate"),
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=180) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


class Corpus(Entry):
    """python -m fairseq_ext.corpus translate: rows with equal flags are files of one run, on Ray;
    a run of one file is without Ray's processes, which take seconds to start."""

    many = True
    apart = ("nbest", "seed", "terms")

    def answer(self, rows):
        out, inputs = self.file(), []
        out.unlink()
        for row in rows:
            records = row.get("records", [{}] * len(row["lines"]))
            lines = [
                json.dumps(record | {"source": line})
                for line, record in zip(row["lines"], records, strict=True)
            ]
            inputs.append(self.file("\n".join([*lines, ""]), "input.jsonl"))
        command = ["translate", "--workers", "1", "--progress", "0", "--output", str(out)]
        sys.argv = ["-m", *command, *as_argv(self.flags(rows[0])), "--input", *map(str, inputs)]
        printed, status = io.StringIO(), 0
        if len(rows) > 1:
            start_ray()
        alone = one_process(pytest.MonkeyPatch(), None)
        with (
            alone if len(rows) == 1 else contextlib.nullcontext(),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            try:
                runpy.run_module("fairseq_ext.corpus", run_name="__main__")
            except SystemExit as end:
                status = int(end.code or 0)
            except RuntimeError as error:  # of a worker; Ray's runs end with its sentence
                return [{"refused": self.plain(error), "status": 1}]
        if status not in (0, 3):
            said = re.findall(r"^error: (.*)$", printed.getvalue(), re.M) or [printed.getvalue()]
            return [{"refused": self.plain(said[-1]), "status": status} for _ in rows]
        return [self.one(row, out, path.stem) for row, path in zip(rows, inputs, strict=True)]

    def one(self, row, out, name):
        made, errors = (
            [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            for path in (out / f"{name}.jsonl", out / "errors.jsonl")
        )
        lines = [
            [list(pair) for pair in zip(each["hypotheses"], each["scores"], strict=True)]
            for each in made
        ]
        for each in errors:
            if each["shard"] == name:
                lines[each["line"] - 1] = {"error": self.plain(each["reason"])}
        return {"lines": lines} | of_phrases(row, [each.get("constraints", []) for each in made])


ENTRIES = {
    "generate": Generate,
    "interactive": Interactive,
    "translator": Translator,
    "translate": Translate,
    "engine": Engine,
    "http": Http,
    "corpus": Corpus,
}
