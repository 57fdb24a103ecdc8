#!/usr/bin/env bash
# Sets the environment up (scripts/setup.sh), then runs ruff, mypy and pytest; all run, and it fails if one of them does.
#
#   scripts/test.sh [PYTEST ARGUMENTS]     for instance scripts/test.sh -k doctor, or scripts/test.sh --device cuda
#   scripts/test.sh --all                  all cases of heavy tests (tests/sizes.py says what runs without it);
#                                          a test whose tool or package is missing fails, and is skipped without it:
#                                          eflomal, fastchrf, PYEVALB and pymarian (pip), LibreOffice, Chromium, node
#                                          and npm, qemu-user-static with other compilers
#
# VENV=, PYTHON= and WHEELS= as in scripts/setup.sh.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

failed=()
run() {
    printf '== %s\n' "$*"
    "$@" || failed+=("$1")
}
run ruff check .
run mypy
run pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"  # a process a core, a file each at a time: each imports all tests, and has its own models
[[ ${#failed[@]} -eq 0 ]] || die "failed: ${failed[*]}."
