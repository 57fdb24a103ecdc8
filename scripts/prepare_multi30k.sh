#!/usr/bin/env bash
# Makes Multi30k (task 1: 29,000 captions) ready for fairseq-train and fairseq-generate, for any two of its languages: de, en, fr, cs.
# Text is taken from --raw, or fetched from the dataset's public repository (github.com/multi30k/dataset) after saying so.
# The data are for non-commercial research use.
#
#   scripts/prepare_multi30k.sh [--src de] [--tgt en] [--out runs/multi30k.de-en] [--raw DIR]
#                               [--vocab 8000] [--spm MODEL] [--dict DIR]
#
#   --raw DIR     local files train.LL, val.LL, test_2016_flickr.LL; nothing is fetched then
#   --vocab N     pieces of the joint SentencePiece model (BPE); undo it with --remove-bpe sentencepiece
#   --spm MODEL   segment with this SentencePiece model instead of training one
#   --dict DIR    binarise with DIR/dict.LL.txt (those of a checkpoint) instead of a new joined dictionary
#   --workers N   processes of fairseq-preprocess (1)
#
# OUT then holds the segmented text, the segmentation model, and OUT/bin. VENV=, PYTHON= and WHEELS= as in scripts/setup.sh.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec python "$ROOT/scripts/prepare_multi30k.py" "$@"
