"""The seven entry points: each takes the whole table of requests, and gives the answers."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ |= {
    "FAIRSEQ_EXT_STRATEGIES": str(HERE / "seeded_models.py"),
    "OMP_NUM_THREADS": "1",
    "PYTHONUTF8": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

Row = dict[str, Any]
LISTS = ("constraints", "any_of", "avoid")


class Entry:
    """An entry point: rows in, what it answers out. folder: of models and files."""

    many = False  # whether rows of equal flags are answered together
    gives = ("lines", "unmet", "met")  # what an answer has where the expected one has it

    def __init__(self, folder: Path):
        self.folder = folder

    def file(self, content: str | bytes = b"", name: str = "file") -> Path:
        """A new file."""
        number, path = tempfile.mkstemp(f"-{name}", dir=self.folder)
        os.close(number)
        Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
        return Path(path)

    def flags(self, row: Row, *own: str) -> Row:
        """The flags of a row. own: what a call of this entry point has, and no flag."""
        from seeded_models import flags

        found = flags(row["model"], self.folder) | row.get("flags", {})
        if "terms" in row and "terms" not in own:
            found["glossary"] = "{terms}"
        found |= {name: row[name] for name in ("nbest", "seed") if name in row and name not in own}
        files = row.get("files", {}) | {
            "terms": "".join(f"{a}\t{b}\n" for a, b in row.get("terms", {}).items())
        }
        for name, value in found.items():
            if isinstance(value, str) and value[:1] == "{":
                found[name] = str(self.file(files[value[1:-1]], f"{value[1:-1]}.tsv"))
        return found

    def run(self, rows: list[Row]) -> Iterator[tuple[str, Row]]:
        """The rows' answers."""
        groups: dict[str, list[Row]] = {}
        for row in rows:
            same = {name: row.get(name) for name in ("model", "flags", "files", *self.apart)}
            alone = not self.many or "show" in row  # statistics are of all rows
            groups.setdefault(row["row"] if alone else json.dumps(same), []).append(row)
        for group in groups.values():
            try:
                yield from zip((row["row"] for row in group), self.answer(group), strict=True)
            except Exception as error:
                import fairseq_ext

                refused = isinstance(error, fairseq_ext.UsageError)
                said = self.plain(error) if refused else traceback.format_exc()
                name = "refused" if refused else "crashed"
                yield from ((row["row"], {name: said}) for row in group)

    apart: tuple[str, ...] = ()  # what else sets rows apart

    def answer(self, rows: list[Row]) -> list[Row]:
        raise NotImplementedError

    def plain(self, said: object) -> str:
        """A message without this run's paths."""
        found = re.sub(rf"{re.escape(str(self.folder))}\S*?(?=[,:;)]|\s|$)", "FILE", str(said))
        return found.replace(str(HERE.parents[1]), "CLONE")


def as_argv(flags: Row) -> list[str]:
    """Flags as a command has them."""
    found: list[str] = []
    for name, value in flags.items():
        found += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
    return found


def constrained(row: Row) -> bool:
    """Whether an answer says which phrases are met."""
    return "terms" in row or any(
        row.get("records", [{}])[i].get(name)
        for i in range(len(row.get("records", [])))
        for name in LISTS[:2]
    )


# ---- commands


class Interactive(Entry):
    """fairseq-interactive, each row in a fork of a process that has everything imported."""

    task = "translation_ext"
    own: Row = {"buffer_size": 64, "batch_size": 64}

    def main(self) -> Any:
        from fairseq_cli.interactive import cli_main

        return cli_main

    def read(self, row: Row, flags: Row) -> None:
        """Put the lines where the command reads them."""
        flags["input"] = str(self.file("".join(f"{line}\n" for line in row["lines"]), "lines"))

    def argv(self, flags: Row) -> list[str]:
        return [flags.pop("data"), *as_argv({**self.own, **flags, "task": self.task})]

    def answer(self, rows: list[Row]) -> list[Row]:
        from forked import forked

        (row,) = rows
        flags = self.flags(row)
        stdin = "".join(f"{line}\n" for line in row["lines"])
        self.read(row, flags)
        if "records" in row:
            content = "".join(json.dumps(each) + "\n" for each in row["records"])
            flags["constraints_file"] = str(self.file(content, "records.jsonl"))
        stats = self.folder / f"{os.getpid()}.stats"
        if constrained(row) or "show" in row:
            flags["stats_file"] = str(stats)
        if "then" in row:
            results = self.file()
            results.unlink()
            flags["results_file"] = str(results)
            forked(self.main(), "command", *self.argv({**flags}), stdin=stdin)
            kept = results.read_text("utf-8").splitlines(True)[:3]  # as if killed
            results.write_text("".join(kept), "utf-8")
            flags |= row["then"] | {"resume": True}
        done = forked(self.main(), "command", *self.argv({**flags}), stdin=stdin)
        if "twice" in row and type(self) is Translate:  # from what the first has saved
            done = forked(self.main(), "command", *self.argv({**flags}), stdin=stdin)
        found = self.lines(row, done)
        if done.status in (0, 3) and "stats_file" in flags:
            found |= shown(row, json.loads(stats.read_text("utf-8")))
        return [found | {"status": done.status}]

    def lines(self, row: Row, done: Any) -> Row:
        """What a command has printed."""
        if done.status not in (0, 3):
            said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            if not said:
                raise RuntimeError(f"{row['row']}: {done.stdout}{done.stderr}")
            return {"refused": self.plain(said[-1].removeprefix("error: "))}
        out: list[Any] = [[] for _ in row["lines"]]
        for number, score, text in re.findall(r"^D-(\d+)\t(.*?)\t(.*)$", done.stdout, re.M):
            out[int(number)].append([text, float(score) * math.log(2)])
        for number, utility in re.findall(r"^U-(\d+)\t(.*)$", done.stdout, re.M):
            out[int(number)][0].append(float(utility))
        for number, said in re.findall(r"^E-(\d+)\s(.*)$", done.stderr, re.M):
            out[int(number)] = {"error": self.plain(said)}
        return {"lines": out}


def shown(row: Row, stats: Row) -> Row:
    """What of the statistics belongs to an answer."""
    found: Row = {}
    if constrained(row) and (counts := stats.get("constraints")):
        found = {"unmet": sorted(counts["unmet"]), "met": counts["met"]}
    stats = stats | {"signature": re.sub(r"\|model:.*", "", stats["signature"])}
    if "show" in row:
        found["stats"] = {name: stats.get(name) for name in row["show"]}
    return found


class Generate(Interactive):
    """fairseq-generate on data that are not binarised."""

    own: Row = {"batch_size": 64, "dataset_impl": "raw", "num_workers": 0}

    def main(self) -> Any:
        from fairseq_cli.generate import cli_main

        return cli_main

    def read(self, row: Row, flags: Row) -> None:
        import sentencepiece

        source, target = flags["source_lang"], flags["target_lang"]
        folder = self.file()
        folder.unlink()
        folder.mkdir()
        for language in (source, target):
            (folder / f"dict.{language}.txt").symlink_to(
                Path(flags["data"]) / f"dict.{language}.txt"
            )
        lines = row["lines"]
        if model := flags.get("sentencepiece_model"):
            encode = sentencepiece.SentencePieceProcessor(model_file=model).encode
            lines = [" ".join(encode(line, out_type=str)) for line in lines]
        for language, text in ((source, lines), (target, row.get("targets", lines))):
            content = "".join(f"{line}\n" for line in text)
            (folder / f"test.{source}-{target}.{language}").write_text(content, "utf-8")
        flags["data"] = str(folder)


class Translate(Interactive):
    """python -m fairseq_ext.translate, which prints the best translation alone."""

    own: Row = {}

    def main(self) -> Any:
        return lambda: runpy.run_module("fairseq_ext.translate", run_name="__main__")

    def read(self, row: Row, flags: Row) -> None:
        pass

    def argv(self, flags: Row) -> list[str]:
        return as_argv(flags)

    def lines(self, row: Row, done: Any) -> Row:
        if done.status not in (0, 3):
            return super().lines(row, done)
        said = [line[7:] for line in done.stderr.splitlines() if line.startswith("error: ")]
        errors = {re.search(r"line (\d+)", each)[1]: self.plain(each) for each in said}  # type: ignore[index]
        return {
            "lines": [
                {"error": errors[str(i)]} if str(i) in errors else [[line]]
                for i, line in enumerate(done.stdout.split("\n")[:-1], 1)
            ]
        }


# ---- Python


class Translator(Entry):
    """fairseq_ext.Translator."""

    many = True
    gives = ("lines", "unmet")
    apart = ("terms",)

    def answer(self, rows: list[Row]) -> list[Row]:
        import fairseq_ext

        translator = fairseq_ext.Translator(**self.flags(rows[0], "nbest", "seed"))
        return [self.one(translator, row) for row in rows]

    def one(self, translator: Any, row: Row) -> Row:
        if "text" in row:
            made = translator.translate_text(row["text"], row["format"])
            return {"text": made.text, "untranslated": len(made.untranslated)}
        given: Row = {name: row[name] for name in ("nbest", "seed") if name in row}
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
        found: Row = {
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


def hypothesis(h: Any) -> list[Any]:
    """A hypothesis of ours; a command prints the utility behind it."""
    return [h.text, h.score, *([] if h.utility is None else [h.utility])]


class Engine(Entry):
    """fairseq_ext.Engine: all lines of a row at once."""

    many = True

    def answer(self, rows: list[Row]) -> list[Row]:
        import fairseq_ext

        flags = self.flags(rows[0], "nbest", "seed", "terms")
        with fairseq_ext.Engine(**flags) as engine:
            signature = re.sub(r"\|model:.*", "", engine.wait(180).signature)
            found = [self.one(engine, row) for row in rows]
        for row, each in zip(rows, found, strict=True):
            if "signature" in row.get("show", ()):
                each["stats"] = {"signature": signature}
        return found

    def one(self, engine: Any, row: Row) -> Row:
        given = {name: row[name] for name in ("nbest", "seed", "terms") if name in row}
        if "text" in row:
            made = engine.submit_text(row["text"], row["format"], **given).result(180)
            return {"text": made.text, "untranslated": len(made.untranslated)}
        futures: list[Any] = []
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


def of_phrases(row: Row, counts: list[list[Row]]) -> Row:
    """Which phrases are met, and where they stand in the text."""
    if not constrained(row):
        return {}
    each = [(i, phrase) for i, phrases in enumerate(counts) for phrase in phrases]
    found: Row = {
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

    def answer(self, rows: list[Row]) -> list[Row]:
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

    def one(self, address: str, row: Row) -> Row:
        own: Row = {name: row[name] for name in ("nbest", "seed") if name in row}
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
        found: Row = {
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
            signature = re.sub(r"\|model:.*", "", of_server(address)["signature"])
            found["stats"] = {"signature": signature}
        return found


def of_server(address: str, body: Any = None) -> Any:
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
    """python -m fairseq_ext.corpus translate: rows with equal flags are files of one run."""

    many = True
    apart = ("nbest", "seed", "terms")

    def answer(self, rows: list[Row]) -> list[Row]:
        import ray

        if not ray.is_initialized():
            ray.init(
                address="local",
                num_cpus=2,
                object_store_memory=100 << 20,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _node_ip_address="127.0.0.1",
            )
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
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                runpy.run_module("fairseq_ext.corpus", run_name="__main__")
            except SystemExit as end:
                status = int(end.code or 0)
        if status not in (0, 3):
            said = re.findall(r"^error: (.*)$", printed.getvalue(), re.M) or [printed.getvalue()]
            return [{"refused": self.plain(said[-1]), "status": status} for _ in rows]
        return [self.one(row, out, path.stem) for row, path in zip(rows, inputs, strict=True)]

    def one(self, row: Row, out: Path, name: str) -> Row:
        made, errors = (
            [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            for path in (out / f"{name}.jsonl", out / "errors.jsonl")
        )
        lines: list[Any] = [
            [list(pair) for pair in zip(each["hypotheses"], each["scores"], strict=True)]
            for each in made
        ]
        for each in errors:
            if each["shard"] == name:
                lines[each["line"] - 1] = {"error": self.plain(each["reason"])}
        return {"lines": lines} | of_phrases(row, [each.get("constraints", []) for each in made])


ENTRIES: dict[str, type[Entry]] = {
    "generate": Generate,
    "interactive": Interactive,
    "translator": Translator,
    "translate": Translate,
    "engine": Engine,
    "http": Http,
    "corpus": Corpus,
}
