#!/usr/bin/env bash
# Regenerates the tables and figures of Santilli et al. 2023 (--decoding): tables.md, flops.md, figure3.svg in OUT; and
# by_length.md and .svg: the gain on short and on long sentences.
#
#   scripts/experiments/jacobi/run.sh --models "DIR DIR" --pairs "de-en fr-en" --text PREFIX [--out DIR] [--threads "1 2"]
#                                     [--graphs "1 7"] [MEASURE ARGUMENTS]
#
# --models: folders with checkpoint.pt, dict.*.txt and spm.model; --pairs: each one's languages, or one pair for all (de-en)
# --text: what is translated (PREFIX.de, PREFIX.en); one for all, or one for each model
# --graphs: lines of the first text whose decoding dependency graphs are drawn (1), as graph1.svg (the paper's Figures 4 and 6)
# MEASURE ARGUMENTS: --limit 100 --repeats 5 --batch 1 --examples 1.
# PYTHON= names another interpreter.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
OUT=$ROOT/runs/jacobi THREADS="1" GRAPHS="1"
MODELS=() PAIRS=(de-en) TEXTS=() REST=()
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
    --out) OUT=${2:?--out wants a folder}; shift 2 ;;
    --models) read -ra MODELS <<<"${2:?--models wants folders}"; shift 2 ;;
    --pairs) read -ra PAIRS <<<"${2:?--pairs wants pairs such as de-en}"; shift 2 ;;
    --text) read -ra TEXTS <<<"${2:?--text wants a prefix}"; shift 2 ;;
    --threads) THREADS=$2; shift 2 ;;
    --graphs) GRAPHS=$2; shift 2 ;;
    *) REST+=("$1"); shift ;;
    esac
done
n=${#MODELS[@]}
for given in "--pairs ${#PAIRS[@]}" "--text ${#TEXTS[@]}"; do
    read -r flag count <<<"$given"
    ((n && (count == 1 || count == n))) || { echo "run.sh: $flag: one for all --models, or one for each, and one model at least" >&2; exit 2; }
done
PYTHON=${PYTHON:-$(if [[ -x $ROOT/.venv/bin/python ]]; then echo "$ROOT/.venv/bin/python"; else echo python3; fi)}

"$PYTHON" "$HERE/../figure_style.py" # says so where matplotlib is missing
mkdir -p "$OUT"
for i in "${!MODELS[@]}"; do
    pair=${PAIRS[i]:-${PAIRS[0]}} text=${TEXTS[i]:-${TEXTS[0]}}
    SRC=${pair%-*} TGT=${pair#*-}
    for threads in $THREADS; do
        result=$OUT/result$i.$threads.json
        [[ -s $result ]] || OMP_NUM_THREADS=$threads "$PYTHON" "$HERE/measure.py" --model "${MODELS[i]}" --text "$text" --src "$SRC" --tgt "$TGT" \
            --threads "$threads" --out "$result" ${REST[@]+"${REST[@]}"}
    done
done
"$PYTHON" "$HERE/tables.py" --out "$OUT"
SRC=${PAIRS[0]%-*} TGT=${PAIRS[0]#*-}
for line in $GRAPHS; do
    [[ -s $OUT/graph$line.svg ]] && continue
    "$PYTHON" -m fairseq_ext.viz.ddg --out "$OUT/graphs/$line" --path "${MODELS[0]}/checkpoint.pt" --data "${MODELS[0]}" -s "$SRC" -t "$TGT" \
        --bpe sentencepiece --spm "${MODELS[0]}/spm.model" "$(sed -n "${line}p" "${TEXTS[0]}.$SRC")"
    cp "$OUT/graphs/$line/0.svg" "$OUT/graph$line.svg"
done
