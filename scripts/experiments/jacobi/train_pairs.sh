#!/usr/bin/env bash
# Trains a small model for each of some pairs of Multi30k's languages, for the paper's Tables 2 and 7 (speed and BLEU over languages), and
# prints the arguments of run.sh that measure them.
#
#   scripts/experiments/jacobi/train_pairs.sh --raw DIR [--out DIR] [--pairs "fr-en en-fr cs-en en-cs"] [TRAIN ARGUMENTS, such as --epochs 8]
#
# --raw DIR: train.LL, val.LL and test_2016_flickr.LL; --out: a folder for each pair (runs/jacobi/pairs), of which those that have a model are
# left as they are. An hour or more for each pair on two CPU cores, minutes on a GPU (scripts/train_multi30k.sh).
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
RAW='' OUT=$ROOT/runs/jacobi/pairs PAIRS=(fr-en en-fr cs-en en-cs) REST=()
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
    --raw) RAW=${2:?--raw wants a folder}; shift 2 ;;
    --out) OUT=${2:?--out wants a folder}; shift 2 ;;
    --pairs) read -ra PAIRS <<<"${2:?--pairs wants pairs such as fr-en}"; shift 2 ;;
    *) REST+=("$1"); shift ;;
    esac
done
[[ -n $RAW ]] || { echo "train_pairs.sh: --raw DIR is needed" >&2; exit 2; }
for pair in "${PAIRS[@]}"; do
    for side in "${pair%-*}" "${pair#*-}"; do
        [[ -f $RAW/train.$side ]] || { echo "train_pairs.sh: $RAW/train.$side is missing" >&2; exit 2; }
    done
done
for pair in "${PAIRS[@]}"; do
    src=${pair%-*} tgt=${pair#*-}
    [[ -f $OUT/$pair/model/checkpoint.pt ]] && continue
    "$ROOT/scripts/prepare_multi30k.sh" --raw "$RAW" --src "$src" --tgt "$tgt" --out "$OUT/$pair"
    "$ROOT/scripts/train_multi30k.sh" --data "$OUT/$pair" --src "$src" --tgt "$tgt" --out "$OUT/$pair/model" ${REST[@]+"${REST[@]}"}
done
echo "run.sh --models '${PAIRS[*]/#/$OUT/}' --pairs '${PAIRS[*]}' --train $RAW/train --text $RAW/test_2016_flickr" | sed "s#\($OUT/[a-z]*-[a-z]*\)#\1/model#g"
