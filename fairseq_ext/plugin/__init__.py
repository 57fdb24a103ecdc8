"""A command while it runs: its sentences, worker processes, the results file, progress.

| files | for |
| --- | --- |
| batches.py, interactive.py, bad_sentences.py, sentences.py, command.py, pools.py | each sentence, from fairseq's commands to the search |
| cpu_workers.py, results_file.py, results_line.py, run_key.py, stats_file.py, progress.py | a flag, or the bar |
| drivers.py | what a generator searches with |
| stock/ | fairseq's tasks, and their twins |
| generators.py, teacher_forcing.py | calls of the Python API |
"""
