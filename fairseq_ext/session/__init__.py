"""A command while it runs: interactive lines, worker processes, the results file, progress.

| on a sentence's way | for a flag | for the task |
| --- | --- | --- |
| interactive.py, sentences.py, command.py | cpu_workers.py, results_file.py, run_key.py, stats_file.py | twin.py, stock_tasks.py, checkpoint.py |
"""
