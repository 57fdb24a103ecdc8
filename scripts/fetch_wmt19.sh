#!/usr/bin/env bash
# Fetches fairseq's public WMT19 models (Ng et al. 2019) and the newstest2019 test set in their language pair.
# Says what it will fetch and how large it is, resumes what was begun, checks sizes and SHA-256 hashes.
#
#   scripts/fetch_wmt19.sh [--pair de-en|en-de|ru-en|en-ru] [--single] [--test SET] [--out DIR] [--sha256 HASH] [--dry-run]
#
#   --pair LL-LL   de-en (default), en-de, ru-en, en-ru
#   --single       one model instead of the ensemble of four
#   --test SET     test set by its name in sacrebleu                  (wmt19)
#   --out DIR      where it all goes                                  (checkpoints/wmt19)
#   --sha256 HASH  the archive's hash, when you have it from a source that you trust; without it, the first fetch
#                  records the hash in DIR/SHA256SUMS and every later one must give the same
#   --dry-run      say what would be fetched and how large it is, and stop
#
# DIR/LL-LL.ensemble (or .single_model) then holds the checkpoints, dictionaries and subword codes; DIR/SET.LL-LL.{src,ref} the test set.
# VENV=, PYTHON= and WHEELS= as in scripts/setup.sh.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec python "$ROOT/scripts/fetch_wmt19.py" "$@"
