#!/usr/bin/env bash
# Regenerates the tables and figures of Huang et al. 2017 (--stop optimal, --length-reward): tables.md, figure1.png, figure2.png in OUT.
#
#   scripts/experiments/optimal_ending/run.sh [--out DIR] [SWEEP ARGUMENTS]     (OUT: runs/optimal_ending)
#
# With no argument: the demo model on its dev and test sets. Another model, or a quick look:
#   run.sh --out DIR --model DIR --dev PREFIX --text PREFIX --src de --tgt en --beams 1 2 5 10 20 50 --rewards 0 0.5 1 --limit 200
# What is done is not repeated, so an interrupted run goes on where it was. PYTHON= names another interpreter.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
OUT=$ROOT/runs/optimal_ending
SWEEP=()
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
    --out) OUT=${2:?--out wants a folder}; shift 2 ;;
    *) SWEEP+=("$1"); shift ;;
    esac
done
PYTHON=${PYTHON:-$(if [[ -x $ROOT/.venv/bin/python ]]; then echo "$ROOT/.venv/bin/python"; else echo python3; fi)}

mkdir -p "$OUT"
"$PYTHON" "$HERE/sweep.py" --cpu --out "$OUT" ${SWEEP[@]+"${SWEEP[@]}"}
"$PYTHON" "$HERE/tables.py" --out "$OUT"
"$PYTHON" "$HERE/figures.py" --out "$OUT"
