#!/usr/bin/env bash
# Regenerates the tables and figures of Post and Vilar 2018 (--select dba): tables.md and figure4, 5, 7, 8.svg in OUT; the paper's
# own search is in the tables (--paper: its parts).
#
#   scripts/experiments/dba/run.sh [--out DIR] [--model DIR] [--text PREFIX] [--src de] [--tgt en] [--limit N] [RUN ARGUMENTS]
#
# With no argument: the demo model on its test set, OUT is runs/dba. For the other arguments: runs.py --help.
# What is done is not repeated, so an interrupted run goes on where it was. PYTHON= names another interpreter.
exec "$(dirname "${BASH_SOURCE[0]}")/../one.sh" "${BASH_SOURCE[0]}" runs.py "$@"
