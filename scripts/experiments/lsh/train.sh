#!/usr/bin/env bash
# Trains the word-level model of these experiments on the CPU: 2+2 layers, 256 dimensions, tied output embedding; some hours.
#
#   scripts/experiments/lsh/train.sh --raw DIR --out DIR [--arch transformer|lstm] [FAIRSEQ-TRAIN ARGUMENTS, such as --max-update 2400]
#
# --raw holds Multi30k's text (prepare.py). OUT gets the text in words, bin/ and checkpoint.pt. It is a small model, trained briefly:
# it is there to compare softmax methods on a real large vocabulary, and BLEU is printed with every result. lstm: the kind of the paper's
# Table 1, but with attention.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
export PATH=$ROOT/.venv/bin:$PATH
raw='' out='' arch=transformer rest=()
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
    --raw) raw=${2:?--raw wants a folder}; shift 2 ;;
    --out) out=${2:?--out wants a folder}; shift 2 ;;
    --arch) arch=${2:?--arch wants transformer or lstm}; shift 2 ;;
    *) rest+=("$1"); shift ;;
    esac
done
[[ $raw && $out ]] || { echo "--raw and --out are needed; see --help" >&2; exit 2; }
case $arch in
transformer) of=(--encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 --encoder-attention-heads 4 --decoder-attention-heads 4
    --encoder-normalize-before --decoder-normalize-before) ;;
lstm) of=(--encoder-bidirectional --encoder-hidden-size 128 --decoder-hidden-size 256 --decoder-out-embed-dim 256) ;;
*) echo "--arch is transformer or lstm, not $arch" >&2; exit 2 ;;
esac
[[ -f $out/bin/train.src-tgt.src.bin ]] || python "$HERE/prepare.py" --raw "$raw" --out "$out"
fairseq-train "$out/bin" --arch "$arch" "${of[@]}" --share-decoder-input-output-embed --encoder-layers 2 --decoder-layers 2 \
    --encoder-embed-dim 256 --decoder-embed-dim 256 --dropout 0.1 -s src -t tgt --cpu --optimizer adam --adam-betas '(0.9, 0.98)' \
    --lr 0.002 --lr-scheduler polynomial_decay --warmup-updates 300 --total-num-update 2400 --max-update 2400 --clip-norm 1 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 2048 --seed 1 --num-workers 0 --log-format simple \
    --disable-validation --no-epoch-checkpoints --save-dir "$out/train" ${rest[@]+"${rest[@]}"}
python "$ROOT/scripts/strip_checkpoint.py" "$out/train/checkpoint_last.pt" "$out/checkpoint.pt"
cp "$out/bin/dict.src.txt" "$out/bin/dict.tgt.txt" "$out"
