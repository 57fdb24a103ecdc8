"""`--prune-*`: which candidates are dropped. A pruner is on when its flags are set."""
