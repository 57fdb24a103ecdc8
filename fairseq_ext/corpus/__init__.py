"""Whole corpora on Ray: many processes, many machines, nothing lost. `python -m fairseq_ext.corpus
translate --help`

| file | what is in it |
| --- | --- |
| shards.py | input files as shards, and a shard as numbered sentences with their constraints |
| worker.py | a Ray actor: a loaded model, and a unit of sentences through it |
| scheduler.py | Ray's start, and which worker gets which unit, through lost workers and nodes |
| output.py | parts, finished files, errors.jsonl: written under another name, renamed when whole |
| progress.py | progress lines, the table at the end, the statistics file |
| job.py | the arguments of a run, what its output depends on, which shards are whole |
| run.py | the run as a whole |

The process that is started reads all input and writes all output, so that workers need nothing
but the model and the dictionaries (and the files of --glossary and --avoid-file) under the same
path; there is no other shared file system to rely on. A unit of 500 sentences costs it a few
milliseconds and a worker seconds.
"""
