#!/usr/bin/env bash
# Sets the environment up (scripts/setup.sh), then runs ruff, mypy and pytest; all three run, and it fails if one of them does.
#
#   scripts/test.sh [PYTEST ARGUMENTS]     for instance scripts/test.sh -k doctor, or scripts/test.sh --device cuda
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
run python scripts/fuzz_kernels.py --seconds 60
run pytest -n 2 --dist loadfile "$@"  # two processes, a file each at a time
[[ ${#failed[@]} -eq 0 ]] || die "failed: ${failed[*]}."
