#!/usr/bin/env bash
# Trains a small Transformer on Multi30k with stock fairseq-train: 3+3 layers, 256 dimensions, shared embeddings; 15 epochs of
# Adam at 2e-3 (inverse square root), then 2 epochs at 2e-4; label smoothing 0.1, dropout 0.2, pre-norm. The result is stored in
# half precision without the optimizer. About 40.7 BLEU on test_2016_flickr (de-en, beam 1) and 41.6 (beam 5).
#
#   scripts/train_multi30k.sh [--data runs/multi30k.de-en] [--src de] [--tgt en] [--out DATA/model] [--epochs 15] [--last-epochs 2]
#                             [-- FAIRSEQ-TRAIN ARGUMENTS]
#
#   --data DIR   what scripts/prepare_multi30k.sh made (DIR/bin)
#   --out DIR    gets checkpoint.pt, the dictionaries and the segmentation model; training can be stopped and resumed
#   after --     anything else for fairseq-train, for instance: -- --fp16 (on a GPU), or: -- --cpu
#
# An hour or more on two CPU cores, minutes on a GPU. VENV=, PYTHON= and WHEELS= as in scripts/setup.sh.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

data=$ROOT/runs/multi30k.de-en src=de tgt=en out='' epochs=15 last=2
while [[ $# -gt 0 && $1 != -- ]]; do
    [[ $# -ge 2 ]] || die "$1 needs a value; see scripts/train_multi30k.sh --help."
    case $1 in
    --data) data=$2 ;;
    --src) src=$2 ;;
    --tgt) tgt=$2 ;;
    --out) out=$2 ;;
    --epochs) epochs=$2 ;;
    --last-epochs) last=$2 ;;
    *) die "unknown argument '$1'; see scripts/train_multi30k.sh --help." ;;
    esac
    shift 2
done
[[ ${1:-} != -- ]] || shift
out=${out:-$data/model}
[[ -f $data/bin/dict.$src.txt && -f $data/bin/dict.$tgt.txt ]] || die "$data/bin holds no $src-$tgt data; make it with scripts/prepare_multi30k.sh."
mkdir -p "$out/epochs" "$out/last"

train() {
    fairseq-train "$data/bin" --source-lang "$src" --target-lang "$tgt" --arch transformer --share-all-embeddings \
        --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --decoder-embed-dim 256 \
        --encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 --encoder-attention-heads 4 --decoder-attention-heads 4 \
        --encoder-normalize-before --decoder-normalize-before --dropout 0.2 \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 1.0 \
        --max-tokens 4096 --seed 1 --no-epoch-checkpoints --log-format simple --log-interval 40 "$@"
}
say "training, 1/2: epochs 1 to $epochs at 2e-3"
train --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 500 --max-epoch "$epochs" --save-dir "$out/epochs" "$@"
say "training, 2/2: $last more at 2e-4"
train --lr 2e-4 --lr-scheduler fixed --max-epoch "$((epochs + last))" --save-dir "$out/last" \
    --restore-file "$out/epochs/checkpoint_last.pt" --reset-lr-scheduler "$@"
python "$ROOT/scripts/strip_checkpoint.py" "$out/last/checkpoint_last.pt" "$out/checkpoint.pt"
cp "$data/bin/dict.$src.txt" "$data/bin/dict.$tgt.txt" "$out"
for model in "$data/spm.model" "$data/bpe.codes"; do
    [[ ! -f $model ]] || cp "$model" "$out"
done
say "ready: $out; translate with fairseq-generate $data/bin --path $out/checkpoint.pt --source-lang $src --target-lang $tgt"
