"""Whole corpora on Ray: many processes, many machines, nothing lost. `python -m fairseq_ext.corpus
translate --help`

| file | what is in it |
| --- | --- |
| shards.py | input files as shards, and a shard as numbered sentences with their constraints |
| worker.py | a Ray actor: a loaded model, and a unit of sentences through it |
| scheduler.py | the pool whose processes Ray starts; the halving of units; Ray's start |
| output.py | parts, finished files, errors.jsonl: written under another name, renamed at the end |
| job.py | the arguments of a run, the manifest of its output, which shards are finished |
| run.py | the run as a whole: progress lines, the table at the end, the statistics file |

The main process reads all input and writes all output. Workers need only the model and the
dictionaries (and the files of --glossary and --avoid-file) under the same path; no other shared
file system is required. A unit of 500 sentences takes the main process a few milliseconds and a
worker several seconds.
"""
