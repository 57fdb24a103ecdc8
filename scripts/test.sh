#!/usr/bin/env bash
# Sets the environment up (scripts/setup.sh), then runs ruff, mypy, fuzz_kernels.py and pytest; all run, and it fails if one of them does.
#
#   scripts/test.sh [PYTEST ARGUMENTS]     for instance scripts/test.sh -k doctor, or scripts/test.sh --device cuda
#   scripts/test.sh --all                  all cases of heavy tests (tests/sizes.py says what runs without it), and a longer fuzz;
#                                          a test whose tool or package is missing fails, and is skipped without it:
#                                          eflomal, fastchrf, PYEVALB and pymarian (pip), LibreOffice, Chromium, node
#                                          and npm, qemu-user-static with other compilers, nvcc
#
# VENV=, PYTHON= and WHEELS= as in scripts/setup.sh.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

failed=()
run() {
    printf '== %s\n' "$*"
    "$@" || failed+=("$1")
}
# one core looks for accesses out of bounds while the other one reads the code
[[ " $* " == *" --all "* ]] && seconds=60 || seconds=4
fuzz=(python scripts/fuzz_kernels.py --seconds "$seconds")
found=$(mktemp)
"${fuzz[@]}" >"$found" 2>&1 &
fuzzing=$!
trap 'kill "$fuzzing" 2>/dev/null || true; rm -f "$found"' EXIT
run ruff check .
run mypy
wait "$fuzzing" || failed+=("${fuzz[1]}")
printf '== %s\n' "${fuzz[*]}" && cat "$found"
run pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"  # a process a core, a file each at a time: each imports all tests, and has its own models
[[ ${#failed[@]} -eq 0 ]] || die "failed: ${failed[*]}."
