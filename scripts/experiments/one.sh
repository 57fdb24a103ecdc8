#!/usr/bin/env bash
# What the run.sh of three papers does: one.sh CALLER SCRIPT ARGUMENTS, where SCRIPT, tables.py and figures.py lie beside CALLER.
# --out DIR (runs/ and the experiment's name) is passed to all three, the other arguments to SCRIPT; --help prints CALLER's header.
set -euo pipefail
CALLER=$1 SCRIPT=$2
shift 2
HERE=$(cd "$(dirname "$CALLER")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
OUT=$ROOT/runs/$(basename "$HERE")
REST=()
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$CALLER"; exit ;;
    --out) OUT=${2:?--out wants a folder}; shift 2 ;;
    *) REST+=("$1"); shift ;;
    esac
done
PYTHON=${PYTHON:-$(if [[ -x $ROOT/.venv/bin/python ]]; then echo "$ROOT/.venv/bin/python"; else echo python3; fi)}

"$PYTHON" "$HERE/../figure_style.py" # says so where matplotlib is missing
mkdir -p "$OUT"
"$PYTHON" "$HERE/$SCRIPT" --cpu --out "$OUT" ${REST[@]+"${REST[@]}"}
"$PYTHON" "$HERE/tables.py" --out "$OUT"
"$PYTHON" "$HERE/figures.py" --out "$OUT"
