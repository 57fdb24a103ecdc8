#!/usr/bin/env bash
# Regenerates Tables 1, 4, 7, 8 and Figures 6, 7, 8 of Shi, Xu and Knight 2018 (--softmax lsh): tables.md and figures in OUT.
#
#   scripts/experiments/lsh/run.sh --raw DIR [--arch transformer] [--work runs/lsh] [--out runs/lsh] [RUN ARGUMENTS, such as --sentences 100 --few 20]
#
# --raw holds Multi30k's text (train, val, test_2016_flickr in en, de, fr, cs). The first run trains the model (train.sh; --arch lstm: the
# kind of the paper's Table 1) and learns the lexical table (scripts/lexical_table.py, which needs eflomal); WORK keeps both. WORK may also be what
# prepare.py --model makes. PYTHON= names another interpreter.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
RAW='' ARCH=transformer WORK=$ROOT/runs/lsh OUT=$ROOT/runs/lsh RUNS=()
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
    --raw) RAW=${2:?--raw wants a folder}; shift 2 ;;
    --arch) ARCH=${2:?--arch wants transformer or lstm}; shift 2 ;;
    --work) WORK=${2:?--work wants a folder}; shift 2 ;;
    --out) OUT=${2:?--out wants a folder}; shift 2 ;;
    *) RUNS+=("$1"); shift ;;
    esac
done
PYTHON=${PYTHON:-$(if [[ -x $ROOT/.venv/bin/python ]]; then echo "$ROOT/.venv/bin/python"; else echo python3; fi)}
export OMP_NUM_THREADS=1

"$PYTHON" "$HERE/../figure_style.py" # says so where matplotlib is missing
mkdir -p "$OUT"
if [[ ! -f $WORK/checkpoint.pt ]]; then
    "$HERE/train.sh" --raw "${RAW:?--raw is needed to train the model}" --out "$WORK" --arch "$ARCH" --minutes 30
fi
[[ -f $WORK/lexicon || ! -f $WORK/train.src ]] || "$PYTHON" "$ROOT/scripts/lexical_table.py" --source "$WORK/train.src" --target "$WORK/train.tgt" --out "$WORK/lexicon"
"$PYTHON" "$HERE/runs.py" --model "$WORK" --out "$OUT" ${RUNS[@]+"${RUNS[@]}"}
"$PYTHON" "$HERE/tables.py" --out "$OUT"
"$PYTHON" "$HERE/figures.py" --out "$OUT"
