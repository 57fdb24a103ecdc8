"""Whole corpora on Ray: many processes, many machines, nothing lost. `python -m fairseq_ext.corpus translate --help`

| file | what is in it |
| --- | --- |
| shards.py, columns.py | input files, and whether they have the keys or columns that are read |
| reading.py | a shard as numbered sentences, with their constraints |
| worker.py | a Ray actor: a loaded model |
| unit.py | a unit of sentences through it, to output records and errors |
| scheduler.py | which worker gets which unit, through lost workers and nodes |
| output.py | parts, finished files, errors.jsonl: written under another name, renamed when whole |
| manifest.py | what the output depends on, and which shards are whole |
| run.py, job.py, cluster.py, progress.py, run_stats.py | the run as a whole, its arguments, Ray's start, what is told |

The process that is started reads all input and writes all output, so that workers need nothing but the model and the dictionaries (and
the files of --glossary and --avoid-file) under the same path; there is no other shared file system to rely on. A unit of 500 sentences
costs it a few milliseconds and a worker seconds.
"""
