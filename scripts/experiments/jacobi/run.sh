#!/usr/bin/env bash
# Regenerates the tables and figures of Santilli et al. 2023 (--decoding): tables.md, flops.md, figure3.png in OUT.
#
#   scripts/experiments/jacobi/run.sh --out DIR --train PREFIX --text PREFIX --model DIR [--src de] [--tgt en] [--threads "1 2"] [MEASURE ARGUMENTS]
#
# --model: a folder with checkpoint.pt, dict.*.txt and spm.model; --train: parallel text for the draft tables, --text: what is translated
# (PREFIX.de, PREFIX.en). More than one --model, --train and --text, in the same order, give more tables (sizes, languages).
# MEASURE ARGUMENTS: --limit 100 --repeats 5 --batch 1. PYTHON= names another interpreter.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
OUT=$ROOT/runs/jacobi THREADS="1" SRC=de TGT=en
MODELS=() TRAINS=() TEXTS=() REST=()
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
    --out) OUT=${2:?--out wants a folder}; shift 2 ;;
    --model) MODELS+=("${2:?--model wants a folder}"); shift 2 ;;
    --train) TRAINS+=("${2:?--train wants a prefix}"); shift 2 ;;
    --text) TEXTS+=("${2:?--text wants a prefix}"); shift 2 ;;
    --src) SRC=$2; shift 2 ;;
    --tgt) TGT=$2; shift 2 ;;
    --threads) THREADS=$2; shift 2 ;;
    *) REST+=("$1"); shift ;;
    esac
done
((${#MODELS[@]} && ${#MODELS[@]} == ${#TRAINS[@]} && ${#MODELS[@]} == ${#TEXTS[@]})) || { echo "run.sh: as many --model as --train and --text, one at least" >&2; exit 2; }
PYTHON=${PYTHON:-$(if [[ -x $ROOT/.venv/bin/python ]]; then echo "$ROOT/.venv/bin/python"; else echo python3; fi)}

mkdir -p "$OUT"
results=() figure=()
for i in "${!MODELS[@]}"; do
    build=("$PYTHON" "$ROOT/scripts/build_drafts.py" --data "${MODELS[i]}" -s "$SRC" -t "$TGT" --spm "${MODELS[i]}/spm.model" --target "${TRAINS[i]}.$TGT")
    [[ -s $OUT/table$i.npz ]] || "${build[@]}" --source "${TRAINS[i]}.$SRC" --output "$OUT/table$i.npz"
    [[ -s $OUT/target$i.npz ]] || "${build[@]}" --output "$OUT/target$i.npz"
    for threads in $THREADS; do
        result=$OUT/result$i.$threads.json
        [[ -s $result ]] || OMP_NUM_THREADS=$threads "$PYTHON" "$HERE/measure.py" --model "${MODELS[i]}" --text "${TEXTS[i]}" --src "$SRC" --tgt "$TGT" \
            --table "$OUT/table$i.npz" --target-table "$OUT/target$i.npz" --threads "$threads" --out "$result" ${REST[@]+"${REST[@]}"}
        results+=("$result")
        ((i)) || figure+=("$result")
    done
done
"$PYTHON" "$HERE/tables.py" --out "$OUT/tables.md" "${results[@]}"
first=()
for i in "${!MODELS[@]}"; do first+=("$OUT/result$i.${THREADS%% *}.json"); done
"$PYTHON" "$HERE/flops.py" --out "$OUT/flops.md" "${first[@]}"
"$PYTHON" "$HERE/figure3.py" --out "$OUT/figure3.png" "${figure[@]}"
