#!/usr/bin/env bash
# Trains the word-level model of these experiments on the CPU (train.py): 2+2 layers, 256 dimensions, tied output embedding.
#
#   scripts/experiments/lsh/train.sh --raw DIR --out DIR [TRAIN ARGUMENTS, such as --updates 2600 --minutes 30]
#
# --raw holds Multi30k's text (prepare.py). OUT gets the text in words, bin/ and checkpoint.pt. It is a small model, trained briefly:
# it is there to compare softmax methods on a real large vocabulary, and BLEU is printed with every result.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
export PATH=$ROOT/.venv/bin:$PATH
raw='' out='' rest=()
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
    --raw) raw=${2:?--raw wants a folder}; shift 2 ;;
    --out) out=${2:?--out wants a folder}; shift 2 ;;
    *) rest+=("$1"); shift ;;
    esac
done
[[ $raw && $out ]] || { echo "--raw and --out are needed; see --help" >&2; exit 2; }
[[ -f $out/bin/train.src-tgt.src.bin ]] || python "$HERE/prepare.py" --raw "$raw" --out "$out"
python "$HERE/train.py" --data "$out/bin" --out "$out/checkpoint_last.pt" ${rest[@]+"${rest[@]}"}
python "$ROOT/scripts/strip_checkpoint.py" "$out/checkpoint_last.pt" "$out/checkpoint.pt"
cp "$out/bin/dict.src.txt" "$out/bin/dict.tgt.txt" "$out"
