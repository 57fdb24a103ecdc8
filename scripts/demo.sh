#!/usr/bin/env bash
# Installs everything, and shows on a small German-English model what required, glossary and banned words do to six sentences and what a
# term base does to a page; then translates the demo's sentences with each method, and prints what it gains or loses.
#
#   scripts/demo.sh [--all] [--limit N] [--rounds N] [--threads N] [--list]
#
#   --all            all of the example sentences, not the six best
#   --limit N        the table: the first N sentences of each kind (all)
#   --rounds N       the table: timed passes of each method            (3)
#   --threads N      threads; more than one gain little here           (1)
#   --list           names the methods and their flags, and stops
#
#   scripts/demo.sh --serve [FLAGS]        starts the server on the demo model instead, its page at http://127.0.0.1:8000; FLAGS: of
#                                          python -m fairseq_ext.serve, decoding flags among them
#
# VENV=, PYTHON= and WHEELS= as in scripts/setup.sh.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
if [[ "${1:-}" == --serve ]]; then
    exec python -m fairseq_ext.serve --data "$ROOT/checkpoints/demo" --beam 5 --cpu "${@:2}"
fi
exec python "$ROOT/scripts/demo.py" "$@"
