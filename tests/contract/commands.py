"""An entry point of the contract, and those that are commands which read lines."""

from __future__ import annotations

import json
import math
import os
import re
import runpy
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
LISTS = ("constraints", "any_of", "avoid")


class Entry:
    """An entry point: rows in, what it answers out. folder: of models and files."""

    many = False  # whether rows of equal flags are answered together
    gives = ("lines", "unmet", "met")  # what an answer has where the expected one has it

    def __init__(self, folder):
        self.folder = folder

    def file(self, content=b"", name="file"):
        """A new file."""
        number, path = tempfile.mkstemp(f"-{name}", dir=self.folder)
        os.close(number)
        Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
        return Path(path)

    def flags(self, row, *own):
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

    def run(self, rows):
        """The rows' answers."""
        groups = {}
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

    apart = ()  # what else sets rows apart

    def answer(self, rows):
        raise NotImplementedError

    def plain(self, said):
        """A message without this run's paths."""
        found = re.sub(rf"{re.escape(str(self.folder))}\S*?(?=[,:;)]|\s|$)", "FILE", str(said))
        return found.replace(str(HERE.parents[1]), "CLONE")


def as_argv(flags):
    """Flags as a command has them."""
    found = []
    for name, value in flags.items():
        found += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
    return found


def constrained(row):
    """Whether an answer says which phrases are met."""
    records = row.get("records", ())
    return "terms" in row or any(each.get(name) for each in records for name in LISTS[:2])


# ---- commands


class Interactive(Entry):
    """fairseq-interactive, each row in a fork of a process that has everything imported."""

    task = "translation_ext"
    own = {"buffer_size": 64, "batch_size": 64}

    def main(self):
        from fairseq_cli.interactive import cli_main

        return cli_main

    def read(self, row, flags):
        """Put the lines where the command reads them."""
        flags["input"] = str(self.file("".join(f"{line}\n" for line in row["lines"]), "lines"))

    def argv(self, flags):
        return [flags.pop("data"), *as_argv({**self.own, **flags, "task": self.task})]

    def answer(self, rows):
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

    def lines(self, row, done):
        """What a command has printed."""
        if done.status not in (0, 3):
            said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            if not said:
                raise RuntimeError(f"{row['row']}: {done.stdout}{done.stderr}")
            return {"refused": self.plain(said[-1].removeprefix("error: "))}
        out = [[] for _ in row["lines"]]
        for number, score, text in re.findall(r"^D-(\d+)\t(.*?)\t(.*)$", done.stdout, re.M):
            out[int(number)].append([text, float(score) * math.log(2)])
        for number, utility in re.findall(r"^U-(\d+)\t(.*)$", done.stdout, re.M):
            out[int(number)][0].append(float(utility))
        for number, said in re.findall(r"^E-(\d+)\s(.*)$", done.stderr, re.M):
            out[int(number)] = {"error": self.plain(said)}
        return {"lines": out}


def of_any_run(signature):
    """A signature without its files and what is behind them: the model, versions."""
    return re.sub(r"\|model:.*|(?<==)/[^,|]*", "", signature)


def shown(row, stats):
    """What of the statistics belongs to an answer."""
    found = {}
    if constrained(row) and (counts := stats.get("constraints")):
        found = {"unmet": sorted(counts["unmet"]), "met": counts["met"]}
    stats = stats | {"signature": of_any_run(stats["signature"])}
    if "show" in row:
        found["stats"] = {name: stats.get(name) for name in row["show"]}
    return found


class Generate(Interactive):
    """fairseq-generate on data that are not binarised."""

    own = {"batch_size": 64, "dataset_impl": "raw", "num_workers": 0}

    def main(self):
        from fairseq_cli.generate import cli_main

        return cli_main

    def read(self, row, flags):
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

    own = {}

    def main(self):
        return lambda: runpy.run_module("fairseq_ext.translate", run_name="__main__")

    def read(self, row, flags):
        pass

    def argv(self, flags):
        return as_argv(flags)

    def lines(self, row, done):
        if done.status not in (0, 3):
            return super().lines(row, done)
        said = [line[7:] for line in done.stderr.splitlines() if line.startswith("error: ")]
        numbers = [re.search(r"line (\d+)", each)[1] for each in said]  # type: ignore[index]
        errors = dict(zip(numbers, map(self.plain, said), strict=True))
        return {
            "lines": [
                {"error": errors[str(i)]} if str(i) in errors else [[line]]
                for i, line in enumerate(done.stdout.split("\n")[:-1], 1)
            ]
        }
