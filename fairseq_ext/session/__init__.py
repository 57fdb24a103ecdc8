"""A command while it runs: interactive lines, worker processes, the results file, progress."""
