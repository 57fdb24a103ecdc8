#!/usr/bin/env bash
# Trains a small Transformer on several parallel texts together, for outputs that differ in length: Multi30k's captions and Europarl's
# text, for instance. 3+3 layers of 256 dimensions, shared embeddings, label smoothing 0.1, dropout 0.1, Adam; one thread.
#
#   scripts/train_mixed.sh --data MULTI30K --data EUROPARL --out DIR [--model DIR] [--src de] [--tgt en] [--updates 20000] [--minutes M]
#                          [--lr 1e-3] [--vocab 8000] [-- FAIRSEQ-TRAIN ARGUMENTS]
#
#   --data DIR    train.SRC and train.TGT, the same for dev or val, and for test or test_2016_flickr; give it once for each text
#   --out DIR     DIR/model gets checkpoint.pt, the dictionaries and spm.model
#   --model DIR   train this model on (checkpoint.pt, dict.*.txt, spm.model) instead of a new one; the first run reads it
#   --updates N   of about 4,096 target tokens; the learning rate falls to zero at the last, so every run wants the same N
#   --minutes M   stop after so long; the same command goes on. Without it a run that is killed goes on from the last 100 updates
#
# A day or more on one core for all 20,000 from nothing; outputs are sentences after 1,000 from a Multi30k model. PYTHON= names another
# interpreter than .venv's.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "train_mixed.sh: $*" >&2; exit 2; }
data=() out='' model='' src=de tgt=en updates=20000 minutes='' lr=1e-3 vocab=8000
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit ;;
    --) shift; break ;;
    esac
    (($# > 1)) || die "$1 wants a value; see scripts/train_mixed.sh --help"
    case $1 in
    --data) data+=("$2") ;;
    --out | --model | --src | --tgt | --updates | --minutes | --lr | --vocab) printf -v "${1#--}" %s "$2" ;;
    *) die "unknown argument '$1'; see scripts/train_mixed.sh --help" ;;
    esac
    shift 2
done
((${#data[@]})) && [[ -n $out ]] || die "--data DIR and --out DIR are needed"
for number in "$updates" ${minutes:+"$minutes"}; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || die "--updates and --minutes want whole numbers above 0, not '$number'"
done
PYTHON=${PYTHON:-$(if [[ -x $ROOT/.venv/bin/python ]]; then echo "$ROOT/.venv/bin/python"; else echo python3; fi)}
[[ $PYTHON != */* ]] || PATH=$(cd "$(dirname "$PYTHON")" && pwd):$PATH
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

# The name of a part of a folder: the first of these names that is there in both languages.
part() {
    local folder=$1 name
    shift
    for name in "$@"; do
        [[ ! -f $folder/$name.$src || ! -f $folder/$name.$tgt ]] || { echo "$folder/$name"; return; }
    done
    die "$folder has no ${*// / or } in $src and $tgt"
}

prepared=$out/data
if [[ ! -f $prepared/done ]]; then
    mkdir -p "$prepared/raw"
    for wanted in "train:train" "val:val dev" "test_2016_flickr:test_2016_flickr test"; do # what prepare_multi30k.py calls the parts
        read -ra names <<<"${wanted#*:}"
        files=()
        for folder in "${data[@]}"; do files+=("$(part "$folder" "${names[@]}")"); done
        for language in "$src" "$tgt"; do
            for file in "${files[@]}"; do cat "$file.$language"; done >"$prepared/raw/${wanted%%:*}.$language"
        done
    done
    from=(--vocab "$vocab")
    [[ -z $model ]] || from=(--spm "$model/spm.model" --dict "$model")
    "$PYTHON" "$ROOT/scripts/prepare_multi30k.py" --src "$src" --tgt "$tgt" --raw "$prepared/raw" --out "$prepared" "${from[@]}"
    touch "$prepared/done"
fi

on=()
[[ -z $model ]] || on=(--finetune-from-model "$model/checkpoint.pt") # fairseq reads it where there is no checkpoint_last.pt
[[ -z $minutes ]] || on+=(--stop-time-hours "$("$PYTHON" -c "print($minutes / 60)")")
saved=$out/training
# fairseq counts --stop-time-hours over all runs of a checkpoint: a run that goes on begins its own count with this entry at zero
[[ ! -f $saved/checkpoint_last.pt || -z $minutes ]] || "$PYTHON" - "$saved/checkpoint_last.pt" <<'PY'
import os, sys, torch
state = torch.load(sys.argv[1], map_location="cpu", weights_only=False)
state["extra_state"]["previous_training_time"] = 0
torch.save(state, sys.argv[1] + ".new")
os.replace(sys.argv[1] + ".new", sys.argv[1])
PY
layers=3 width=256 inner=1024 heads=4 before=True
if [[ -n $model ]]; then # its shape; both sides are alike in what train_multi30k.sh and this script make
    read -r layers width inner heads before < <("$PYTHON" - "$model/checkpoint.pt" <<'PY'
import argparse, sys, torch
with torch.serialization.safe_globals([argparse.Namespace]):
    cfg = torch.load(sys.argv[1], map_location="cpu", weights_only=True)["cfg"]["model"]
names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before")
sides = [[getattr(cfg, f"{side}_{name}") for name in names] for side in ("encoder", "decoder")]
if sides[0] != sides[1] or not cfg.share_all_embeddings:
    sys.exit("train_mixed.sh: the model's encoder and decoder differ in shape or have embeddings of their own: leave --model out")
print(*sides[0])
PY
    ) || exit 2
fi
shape=()
for side in encoder decoder; do
    shape+=("--$side-layers" "$layers" "--$side-embed-dim" "$width" "--$side-ffn-embed-dim" "$inner" "--$side-attention-heads" "$heads")
    [[ $before != True ]] || shape+=("--$side-normalize-before")
done
fairseq-train "$prepared/bin" --source-lang "$src" --target-lang "$tgt" --arch transformer --share-all-embeddings --cpu "${shape[@]}" \
    --dropout 0.1 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9,0.98)' --clip-norm 1.0 --lr "$lr" --lr-scheduler polynomial_decay --warmup-updates 100 \
    --total-num-update "$updates" --max-update "$updates" --max-tokens 4096 --num-workers 0 --seed 1 --save-dir "$saved" \
    --no-epoch-checkpoints --save-interval-updates 100 --keep-interval-updates 1 --log-format simple --log-interval 20 \
    --skip-invalid-size-inputs-valid-test ${on[@]+"${on[@]}"} "$@"

mkdir -p "$out/model"
"$PYTHON" "$ROOT/scripts/strip_checkpoint.py" "$saved/checkpoint_last.pt" "$out/model/checkpoint.pt"
cp "$prepared/bin/dict.$src.txt" "$prepared/bin/dict.$tgt.txt" "$prepared/spm.model" "$out/model"
echo "train_mixed.sh: $out/model holds the model so far; --updates $updates is where training ends" >&2
