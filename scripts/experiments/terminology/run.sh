#!/usr/bin/env bash
# Where forced terms land, and what that costs: tables.md and success.svg in OUT.
#
#   scripts/experiments/terminology/run.sh [--out DIR] [--model DIR] [--text PREFIX] [--src de] [--tgt en] [--limit N]
#       [--glossary F] [--proper F] [--sets ...] [--methods ...] [--published DIR] [RUN ARGUMENTS]
#
# The model without terms, with terms of a glossary that the reference has (--proper), with those that it may not have (--glossary), and
# with random terms of the references; dba, its variants, gbs, cbs and fairseq's own constrained search. make_glossary.py makes the
# glossaries from training text. With no argument: the demo model on its test set, random terms, OUT is runs/terminology. For the other
# arguments: runs.py --help. What is done is not repeated, so an interrupted run goes on where it was. PYTHON= names another interpreter.
# --published DIR: `terms score` beside the scores that the WMT 2025 task published (published_scores.py says what DIR holds), in
# OUT/published.md; status 1 where they differ by more than they may.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
OUT=$ROOT/runs/terminology PUBLISHED=
REST=()
while (($#)); do
    case $1 in
    --out) OUT=${2:?--out wants a folder}; shift 2 ;;
    --published) PUBLISHED=${2:?--published wants a folder}; shift 2 ;;
    *) REST+=("$1"); shift ;;
    esac
done
export PYTHON=${PYTHON:-$(if [[ -x $ROOT/.venv/bin/python ]]; then echo "$ROOT/.venv/bin/python"; else echo python3; fi)}

"$HERE/../one.sh" "${BASH_SOURCE[0]}" runs.py --out "$OUT" ${REST[@]+"${REST[@]}"}
if [[ $PUBLISHED ]]; then
    "$PYTHON" "$HERE/published_scores.py" "$PUBLISHED" --out "$OUT"
fi
