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
#   scripts/demo.sh --serve [FLAGS]        starts the server on the demo model instead, its page at http://127.0.0.1:8000; FLAGS: of
#                                          python -m fairseq_ext.serve, decoding flags among them
#
# VENV=, PYTHON= and WHEELS= as in scripts/setup.sh.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
if [[ "${1:-}" == --serve ]]; then
    model="$ROOT/checkpoints/demo"
    exec python -m fairseq_ext.serve --path "$model/checkpoint.pt" --data "$model" -s de -t en --bpe sentencepiece \
        --sentencepiece-model "$model/spm.model" --beam 5 --cpu "${@:2}"
fi
exec python "$ROOT/scripts/demo.py" "$@"
