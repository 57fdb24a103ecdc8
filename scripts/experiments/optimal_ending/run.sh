#!/usr/bin/env bash
# Regenerates the tables and figures of Huang et al. 2017 (--stop optimal, --length-reward): tables.md, figure1, figure2.svg in OUT.
#
#   scripts/experiments/optimal_ending/run.sh [--out DIR] [SWEEP ARGUMENTS]     (OUT: runs/optimal_ending)
#
# With no argument: the demo model on its text, on which it is then tuned too (a check that it runs). Another model, or a quick look:
#   run.sh --out DIR --model DIR --dev PREFIX --text PREFIX --src de --tgt en --beams 1 2 5 10 20 50 --rewards 0 0.5 1 --limit 200
# What is done is not repeated, so an interrupted run goes on where it was. PYTHON= names another interpreter.
exec "$(dirname "${BASH_SOURCE[0]}")/../one.sh" "${BASH_SOURCE[0]}" sweep.py "$@"
