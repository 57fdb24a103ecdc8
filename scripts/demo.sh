#!/usr/bin/env bash
# Shows what required, glossary and banned words do to three sentences, then translates the demo test set with fairseq-generate, once per
# strategy, and prints a table: strategy, beam, BLEU, sentences/s, decoder calls, speed as a ratio to stock.
#
#   scripts/demo.sh [--limit N] [--only NAME ...] [--beam K] [--model DIR] [--test PREFIX] [--src LL] [--tgt LL] [--work DIR] [--list]
#
#   --limit N        the first N sentences (300; 0: all)
#   --only NAME      this strategy only (more than once: these)
#   --beam K         beam size of strategies that name none (5)
#   --model DIR      a folder with checkpoint.pt, dict.LL.txt, spm.model  (checkpoints/demo)
#   --test PREFIX    text in PREFIX.LL, one sentence a line               (data/demo/test)
#   --src, --tgt     languages                                            (de, en)
#   --work DIR       where the binarised text, outputs and logs go        (runs/demo)
#   --list           names the strategies and their flags, and stops
#
# VENV=, PYTHON= and WHEELS= as in scripts/setup.sh.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec python "$ROOT/scripts/demo.py" "$@"
