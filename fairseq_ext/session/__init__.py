"""A command while it runs: interactive lines, worker processes, the results file, progress.

| files | for |
| --- | --- |
| interactive.py, sentences.py, command.py | each sentence, in this order |
| cpu_workers.py, results_file.py, run_key.py, stats_file.py, progress.py | a flag, or the bar |
| twin.py, stock_tasks.py, checkpoint.py, target_dictionary.py | the task |
"""
