#!/usr/bin/env bash
# Regenerates the tables and the figure of Yang et al. 2020 (--schedule stream): tables.md, figure2.svg in OUT.
#
#   scripts/experiments/streaming/run.sh [--out DIR] [--raw DIR] [--trees DIR] [--parsing-only] [TRANSLATION ARGUMENTS] (OUT: runs/streaming)
#
# With no argument: translation with the demo model. Another model: --model DIR --ensemble CHECKPOINT --text PREFIX --dev PREFIX
# --limit 200, see translation.py --help. With --raw, a folder of atis and geo .{train,dev,test}.{nl,sql}, semantic parsing too: trains the
# models on the first run (about ten minutes of one CPU core each). With --trees, a folder of {train,dev,test}.trees, syntactic parsing too
# (twenty minutes; PYEVALB counts brackets). What is done is not repeated. PYTHON= names another interpreter.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
OUT=$ROOT/runs/streaming RAW='' TREES='' ONLY=''
TRANSLATION=()
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
    --out) OUT=${2:?--out wants a folder}; shift 2 ;;
    --raw) RAW=${2:?--raw wants a folder}; shift 2 ;;
    --trees) TREES=${2:?--trees wants a folder}; shift 2 ;;
    --parsing-only) ONLY=1; shift ;;
    *) TRANSLATION+=("$1"); shift ;;
    esac
done
PYTHON=${PYTHON:-$(if [[ -x $ROOT/.venv/bin/python ]]; then echo "$ROOT/.venv/bin/python"; else echo python3; fi)}
[[ $PYTHON != */* ]] || PATH=$(dirname "$PYTHON"):$PATH # where the fairseq commands are
[[ -z $ONLY || -n $RAW$TREES ]] || { echo "error: --parsing-only wants --raw DIR or --trees DIR" >&2; exit 2; }

"$PYTHON" "$HERE/../figure_style.py" # says so where matplotlib is missing
mkdir -p "$OUT"
if [[ -n $RAW ]]; then
    for set in atis geo; do
        [[ -f $OUT/$set/model/checkpoint.pt ]] || "$PYTHON" "$HERE/train_parsing.py" --raw "$RAW" --set "$set" --out "$OUT/$set"
    done
    "$PYTHON" "$HERE/parsing.py" --raw "$RAW" --out "$OUT"
fi
if [[ -n $TREES ]]; then
    [[ -f $OUT/trees/model/checkpoint.pt ]] || "$PYTHON" "$HERE/train_trees.py" --trees "$TREES" --out "$OUT/trees"
    "$PYTHON" "$HERE/trees.py" --trees "$TREES" --out "$OUT"
fi
if [[ -z $ONLY ]]; then
    "$PYTHON" "$HERE/translation.py" --out "$OUT" ${TRANSLATION[@]+"${TRANSLATION[@]}"}
fi
"$PYTHON" "$HERE/tables.py" --out "$OUT"
if [[ -z $ONLY && -f $OUT/translation/steps.json ]]; then # --parts may leave it out
    "$PYTHON" "$HERE/figures.py" --out "$OUT"
fi
