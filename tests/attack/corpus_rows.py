"""Wrong commands of `python -m fairseq_ext.corpus` and wrong lines of its input, each with a part
of the sentence that it gets."""

from __future__ import annotations

# arguments behind those of a command that works; {names} are files of test_corpus_attacks.py
COMMANDS: dict[str, tuple[list[str], str]] = {
    "no model": (
        ["--path", "{folder}/none.pt"],
        "--path {folder}/none.pt is not a file: name one checkpoint",
    ),
    "a folder as model": (["--path", "{folder}"], "--path {folder} is not a file"),
    "the second model": (["--path", "{model}:{folder}/none.pt"], "none.pt is not a file"),
    "no data": (
        ["--data", "{folder}/none"],
        "--data {folder}/none is not a folder: name the one with the model's dictionaries",
    ),
    "a file as data": (["--data", "{input}"], "is not a folder"),
    "no input": (
        ["--input", "{folder}/none.txt"],
        "--input {folder}/none.txt does not exist: name files, folders or patterns that do",
    ),
    "a pattern of nothing": (["--input", "{folder}/*.nope"], "*.nope does not exist"),
    "an empty folder": (["--input", "{empty}"], "--input {empty} does not exist"),
    "one input twice": (
        ["--input", "{input}", "{input}"],
        "would have the same name: rename one, or run twice",
    ),
    "two suffixes": (["--input", "{input}", "{jsonl}"], "would have the same name"),
    "output below a file": (
        ["--output", "{input}/x"],
        "cannot be written (Not a directory): name another folder",
    ),
    "output is a file": (["--output", "{input}"], "cannot be written"),
    "output over the input": (
        ["--input", "{jsonl}", "--output", "{folder}"],
        "the output of {jsonl} would be {jsonl}: name another",
    ),
    "a device": (
        ["--input", "/dev/null"],
        "--input /dev/null is not a regular file, and a corpus run reads its files more than once",
    ),
    "a pipe": (["--input", "{pipe}"], "--input {pipe} is not a regular file"),
    "constraints from a pipe": (
        ["--constraints-file", "{pipe}"],
        "--constraints-file {pipe} is not a regular file",
    ),
    "a folder of constraints": (
        ["--constraints-file", "{empty}"],
        "--constraints-file {empty} is not a regular file",
    ),
    "one constraints file for two": (
        ["--input", "{input}", "{other}", "--constraints-file", "{tsv}"],
        "--constraints-file names 1 file and the input has 2: give one for each, in order",
    ),
    "a wrong flag": (["--beem", "5"], "unrecognized arguments: --beem 5"),
    "a wrong value": (["--beam", "many"], "argument --beam: invalid int value: 'many'"),
    "a wrong choice": (["--stop", "never"], "argument --stop: invalid choice: 'never'"),
    "an unknown task": (["--task", "translation_nope_ext"], "translation_nope_ext"),
    "no progress": (["--progress", "-5"], "--progress (seconds) must be 0 or more, not -5.0"),
    "a results file": (
        ["--results-file", "r"],
        "--results-file belongs to the other commands: leave it out",
    ),
    "resume": (["--resume"], "--resume belongs to the other commands"),
    "alignments": (
        ["--print-alignment"],
        "--print-alignment has no place in the records of a corpus run: leave it out",
    ),
    "processes": (["--cpu-workers", "4"], "--cpu-workers would start processes within the workers"),
    "a report": (
        ["--glossary", "{tsv}", "--glossary-report", "r"],
        "--glossary-report writes a file of its own",
    ),
    "documents": (
        ["--glossary", "{tsv}", "--glossary-documents", "blank"],
        "--glossary-documents has a line wait for the lines before it",
    ),
    "strict": (
        ["--strict"],
        "--strict ends at a sentence, and a corpus run continues to its end: leave it out",
    ),
    "graphs": (
        ["--ddg-dir", "d"],
        "--ddg-dir is for a few sentences of the other commands, not a corpus: leave it out",
    ),
    "a column that is not there": (
        ["--input", "{parquet}"],
        'has no column "source" or "text": name one with --source-field',
    ),
    "a key that is not there": (
        ["--input", "{jsonl}", "--source-field", "deutsch"],
        'has no key "deutsch": name one with --source-field',
    ),
    "another": (["--input", "{parquet}", "--source-field", "deutsch"], 'has no column "deutsch"'),
    "statistics in a folder": (["--stats-file", "{folder}"], "(Is a directory)"),
    "statistics over the input": (
        ["--stats-file", "{input}"],
        "--stats-file would be written over {input}, which --input names as well",
    ),
    "statistics over the model": (
        ["--stats-file", "{model}"],
        "--stats-file would be written over {model}, which --path names",
    ),
    "statistics over a glossary": (
        ["--glossary", "{tsv}", "--stats-file", "{tsv}"],
        "--stats-file would be written over {tsv}",
    ),
    "statistics nowhere": (["--stats-file", "{folder}/no/stats"], "(No such file or directory)"),
}
# refused by argparse, with status 2
USAGE: dict[str, tuple[list[str], str]] = {
    "no threads": (["--threads", "0"], "argument --threads: invalid positive value: '0'"),
    "threads in words": (["--threads", "two"], "argument --threads: invalid positive value: 'two'"),
    "half a worker": (["--workers", "0.5"], "argument --workers: invalid positive value"),
    "a unit below 0": (["--unit", "-1"], "argument --unit: invalid positive value"),
    "a format": (["--format", "xml"], "argument --format: invalid choice: 'xml'"),
}
# lines of JSONL input, of 20 tokens at most
OBJECTS: dict[str, tuple[bytes, str, str]] = {
    "no JSON": (b"Haus", "invalid line", "is not valid JSON"),
    "cut short": (b'{"source": "Haus', "invalid line", "is not valid JSON"),
    "a list": (b'["Haus"]', "invalid line", "is not a JSON object"),
    "nothing": (b"", "invalid line", "is not valid JSON"),
    "no source": (
        b'{"id": 3}',
        "invalid line",
        'has no text in "source": write the source sentence there (--source-field)',
    ),
    "null": (b'{"source": null}', "invalid line", "has no text in"),
    "a number": (b'{"source": 5}', "invalid line", "has no text in"),
    "a key twice": (b'{"source": "Haus", "source": "Hof"}', "invalid line", "has a key twice"),
    "deep": (b'{"source": ' + b"[" * 50_000, "invalid line", "is not valid JSON"),
    "an id 101 deep": (
        b'{"source": "Haus", "id": ' + b"[" * 101 + b"]" * 101 + b"}",
        "invalid line",
        "more than 100 deep: make it flat",
    ),
    "an infinite id": (
        b'{"source": "Haus", "id": 1e999}',
        "invalid line",
        "has a number that JSON has no form for (NaN or Infinity)",
    ),
    "NaN for an id": (
        b'{"source": "Haus", "id": [NaN]}',
        "invalid line",
        "has a number that JSON has no form for",
    ),
    "a byte of no character": (
        b'{"source": "H\xff"}',
        "invalid UTF-8",
        "is not valid UTF-8 (byte 14)",
    ),
    "half a character": (
        b'{"source": "a\\ud800"}',
        "invalid UTF-8",
        "is not valid Unicode (character 2)",
    ),
    "half a character in a constraint": (
        b'{"source": "Haus", "constraints": ["\\ud800"]}',
        "invalid UTF-8",
        "is not valid Unicode",
    ),
    "half a character in any_of": (
        b'{"source": "Haus", "any_of": [["\\udfff"]]}',
        "invalid UTF-8",
        "is not valid Unicode",
    ),
    "half a character in avoid": (
        b'{"source": "Haus", "avoid": ["x\\ud800"]}',
        "invalid UTF-8",
        "is not valid Unicode",
    ),
    "half a character in the prefix": (
        b'{"source": "Haus", "prefix": "\\ud800"}',
        "invalid UTF-8",
        "is not valid Unicode",
    ),
    "half a character in the id": (
        b'{"source": "Haus", "id": "\\ud800"}',
        "invalid UTF-8",
        "is not valid Unicode",
    ),
    "half a character inside the id": (
        b'{"source": "Haus", "id": {"a": ["\\ud800"]}}',
        "invalid UTF-8",
        "is not valid Unicode",
    ),
    "half a character as key of the id": (
        b'{"source": "Haus", "id": {"\\ud800": 1}}',
        "invalid UTF-8",
        "is not valid Unicode",
    ),
    "constraints as text": (
        b'{"source": "Haus", "constraints": "en1"}',
        "invalid line",
        'has "en1" for "constraints"',
    ),
    "a number for a phrase": (
        b'{"source": "Haus", "constraints": [7]}',
        "invalid line",
        'has 7 for a phrase in "constraints"',
    ),
    "an empty phrase": (
        b'{"source": "Haus", "constraints": [""]}',
        "invalid line",
        "has an empty phrase",
    ),
    "any_of of texts": (
        b'{"source": "Haus", "any_of": ["en1"]}',
        "invalid line",
        'for a constraint in "any_of"',
    ),
    "avoid as object": (b'{"source": "Haus", "avoid": {}}', "invalid line", 'has {} for "avoid"'),
    "a prefix of numbers": (
        b'{"source": "Haus", "prefix": [1]}',
        "invalid line",
        'for a phrase in "prefix"',
    ),
    "a long wrong value": (
        b'{"source": "Haus", "constraints": "' + b"x" * 9000 + b'"}',
        "invalid line",
        "x... for",
    ),
    "too many bytes": (
        b'{"source": "' + b"x" * (1 << 20) + b'"}',
        "too long",
        "has more than 1048576 bytes: shorten or split it",
    ),
}
