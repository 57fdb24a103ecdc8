#!/usr/bin/env bash
# Trains the demo model from nothing and puts it into checkpoints/demo/.
#
#   scripts/train_demo.sh [--threads N] [--updates N] [--work DIR] [--out DIR]
#
# Steps: generate the corpus, train a joint SentencePiece model, fairseq-preprocess, fairseq-train (CPU), strip the
# checkpoint, score the test set. The commands come from the virtual environment .venv; another one: VENV=DIR.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
threads=1
updates=2000
work=runs/train_demo
out=checkpoints/demo
while [ $# -gt 0 ]; do
  case $1 in
    --threads) threads=$2; shift 2 ;;
    --updates) updates=$2; shift 2 ;;
    --work) work=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    -h|--help) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "train_demo.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done
export OMP_NUM_THREADS=$threads
say() { echo "[$(date +%H:%M:%S)] $*"; }
mkdir -p "$work" "$out"

say "1/6 generating the corpus in $work/text"
"$VENV/bin/python" data/demo/generate.py --out "$work/text" --seed 1 --train 80000 --dev 500 --test 1000

say "2/6 training a SentencePiece model of 4,000 pieces and segmenting"
"$VENV/bin/python" - "$work" <<'PYTHON'
import os
import sys

import sentencepiece

os.chdir(sys.argv[1])  # the model records the paths it was trained with
sentencepiece.SentencePieceTrainer.train(
    input=["text/train.de", "text/train.en"], model_prefix="spm", vocab_size=4000, model_type="bpe",
    character_coverage=1.0, num_threads=1, unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1, minloglevel=1)
processor = sentencepiece.SentencePieceProcessor(model_file="spm.model")
for name in ("train", "dev", "test"):
    for language in ("de", "en"):
        with open(f"text/{name}.{language}", encoding="utf-8") as lines, \
             open(f"{name}.spm.{language}", "w", encoding="utf-8") as pieces:
            for line in lines:
                print(*processor.encode(line.rstrip("\n"), out_type=str), file=pieces)
PYTHON

say "3/6 binarising in $work/bin"
rm -rf "$work/bin"
"$VENV/bin/fairseq-preprocess" --source-lang de --target-lang en --joined-dictionary --destdir "$work/bin" \
  --trainpref "$work/train.spm" --validpref "$work/dev.spm" --testpref "$work/test.spm" > "$work/preprocess.log" 2>&1

say "4/6 training for $updates updates on $threads thread(s); the log is $work/train.log"
rm -rf "$work/model"
"$VENV/bin/fairseq-train" "$work/bin" --source-lang de --target-lang en --cpu --seed 1 --num-workers 0 \
  --arch transformer --share-all-embeddings --encoder-normalize-before --decoder-normalize-before --dropout 0.1 \
  --encoder-layers 3 --encoder-embed-dim 160 --encoder-ffn-embed-dim 640 --encoder-attention-heads 4 \
  --decoder-layers 3 --decoder-embed-dim 160 --decoder-ffn-embed-dim 640 --decoder-attention-heads 4 \
  --max-source-positions 256 --max-target-positions 256 \
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 3000 --clip-norm 1.0 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --lr 2.5e-3 --lr-scheduler polynomial_decay --warmup-updates 300 \
  --total-num-update "$updates" --max-update "$updates" \
  --save-dir "$work/model" --no-epoch-checkpoints --save-interval-updates 600 --keep-interval-updates 1 \
  --log-format simple --log-interval 20 2>&1 | tee "$work/train.log" \
  | sed -unE "s/.*(epoch .* nll_loss=[0-9.]+).*(num_updates=[0-9]*00),.*/\1 \2/p; s/.*(valid on.*ppl [0-9.]+).*/\1/p"

say "5/6 writing $out"
"$VENV/bin/python" scripts/strip_checkpoint.py "$work/model/checkpoint_last.pt" "$out/checkpoint.pt"
cp "$work/bin/dict.de.txt" "$work/bin/dict.en.txt" "$work/spm.model" "$out/"

say "6/6 scoring the test set with beam 5"
"$VENV/bin/fairseq-generate" "$work/bin" --path "$out/checkpoint.pt" --cpu --beam 5 --max-tokens 4000 \
  --remove-bpe sentencepiece > "$work/generate.out" 2> "$work/generate.log"
grep '^H-' "$work/generate.out" | sed 's/^H-//' | sort -n | cut -f3 > "$work/test.hyp"
"$VENV/bin/sacrebleu" "$work/text/test.en" < "$work/test.hyp"
