#!/usr/bin/env bash
# Where forced terms land, and what that costs: tables.md and success.svg and .png in OUT.
#
#   scripts/experiments/terminology/run.sh [--out DIR] [--model DIR] [--text PREFIX] [--src de] [--tgt en] [--limit N]
#       [--glossary F] [--proper F] [--sets ...] [--methods ...] [RUN ARGUMENTS]
#
# The model without terms, with terms of a glossary that the reference has (--proper), with those that it may not have (--glossary), and
# with random terms of the references; dba, its variants, gbs, cbs and fairseq's own constrained search. make_glossary.py makes the
# glossaries from training text. With no argument: the demo model on its test set, random terms, OUT is runs/terminology. For the other
# arguments: runs.py --help. What is done is not repeated, so an interrupted run goes on where it was. PYTHON= names another interpreter.
exec "$(dirname "${BASH_SOURCE[0]}")/../one.sh" "${BASH_SOURCE[0]}" runs.py "$@"
