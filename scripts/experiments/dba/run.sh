#!/usr/bin/env bash
# Regenerates the tables and figures of Post and Vilar 2018 (--select dba): tables.md and figure4, 5, 7, 8.png in OUT.
#
#   scripts/experiments/dba/run.sh [--out DIR] [--model DIR] [--text PREFIX] [--src de] [--tgt en] [--limit N] [RUN ARGUMENTS]
#
# With no argument: the demo model on its test set, OUT is runs/dba. For the other arguments: runs.py --help.
# What is done is not repeated, so an interrupted run goes on where it was. PYTHON= names another interpreter.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
OUT=$ROOT/runs/dba
RUNS=()
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
    --out) OUT=${2:?--out wants a folder}; shift 2 ;;
    *) RUNS+=("$1"); shift ;;
    esac
done
PYTHON=${PYTHON:-$(if [[ -x $ROOT/.venv/bin/python ]]; then echo "$ROOT/.venv/bin/python"; else echo python3; fi)}

mkdir -p "$OUT"
"$PYTHON" "$HERE/runs.py" --cpu --out "$OUT" ${RUNS[@]+"${RUNS[@]}"}
"$PYTHON" "$HERE/tables.py" --out "$OUT"
"$PYTHON" "$HERE/figures.py" --out "$OUT"
