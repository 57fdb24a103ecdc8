#!/usr/bin/env bash
# Makes the virtual environment that every other script here uses, and installs fairseq 0.12.2 and this project in it.
#
#   scripts/setup.sh                  make or repair the environment; instant when nothing has changed
#   scripts/setup.sh --download DIR   fill DIR with every wheel that is needed, fairseq's built one included
#   WHEELS=DIR scripts/setup.sh       install from such a folder alone, without network
#
# Settings (environment variables)
#   VENV     where the environment is        (default: .venv beside this project)
#   PYTHON   what it is made from            (default: python3; 3.10 or newer)
#   WHEELS   a folder of wheels: nothing else is asked then. It fits the Python version and the platform it was filled on.
#
# An environment that something else has made is used where it has pip, and never cleared. Without a C++ compiler, or without Python.h
# (Debian and Ubuntu: python3-dev), fairseq is installed without its compiled parts, which fairseq_ext replaces.
# pip's own settings apply as well: with PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS, for instance, a CPU-only torch can be chosen.
# Other scripts source this file; they then find the environment's commands first in PATH.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=${VENV:-$ROOT/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV
STAMP=$VENV/fairseq_ext.stamp
MADE=$VENV/made_by_setup.sh # only what has this file is ever cleared
FAIRSEQ=fairseq==0.12.2
[[ -z ${WHEELS:-} || $WHEELS == /* ]] || WHEELS=$PWD/$WHEELS
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf 'set-up: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# A script's usage is its header comment.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$1"; }

# Fails unless $1 is a Python that can hold fairseq_ext in an environment.
require_python() {
    local version
    command -v "$1" >/dev/null || die "no '$1' found; install Python 3.10 or newer, or name one with PYTHON=."
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || die "'$1' does not start; name another Python with PYTHON=."
    [[ ${version%%.*} -eq 3 && ${version#*.} -ge 10 ]] || die "'$1' is Python $version, but 3.10 or newer is needed; name one with PYTHON=."
    "$1" -c 'import venv, ensurepip' 2>/dev/null || die "'$1' (Python $version) has no venv module; install it (on Debian and Ubuntu: python$version-venv)."
}

# What the environment depends on: these files, both places, its Python.
fingerprint() {
    "$VENV/bin/python" - "$ROOT" "$VENV" requirements.txt setup.py fairseq_ext/plugin/compat/fairseq_ext{.pth,_start.py} <<'PY'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
digest = hashlib.sha256(repr((str(root), sys.argv[2], sys.version_info[:3])).encode())
for name in sys.argv[3:]:
    digest.update((root / name).read_bytes())
print(digest.hexdigest())
PY
}

# pip <command> <what for> <arguments>: quiet unless it fails.
pip() {
    local command=$1 purpose=$2
    shift 2
    local offline=()
    [[ -z ${WHEELS:-} ]] || offline=(--no-index --find-links "$WHEELS")
    "$VENV/bin/python" -m pip "$command" -qq ${offline[@]+"${offline[@]}"} "$@" >&2 ||
        die "pip could not $purpose (its message is above); run this again once that is mended: what is installed stays."
}

# Whether the environment is there, whole, and was made for this place (the commands in it name their own path).
usable() {
    "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null &&
        "$VENV/bin/python" -m pip --version >/dev/null 2>&1 && grep -qF "$VENV/bin" "$VENV/bin/pip" 2>/dev/null
}

# Why not.
unusable() {
    if ! "$VENV/bin/python" -c '' 2>/dev/null; then
        echo "its Python does not start"
    elif ! "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "its Python is older than 3.10"
    elif ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        echo "it has no pip ($VENV/bin/python -m ensurepip installs it)"
    else
        echo "its pip is of another place"
    fi
}

make_venv() {
    ! usable || return 0
    local clear=()
    if [[ -e $MADE ]]; then
        clear=(--clear)
    elif [[ -e $VENV/pyvenv.cfg ]]; then
        die "$VENV was not made by this script and cannot be used, because $(unusable); name another place with VENV=, or remove it."
    elif [[ -e $VENV && -n $(ls -A "$VENV") ]]; then
        die "$VENV exists and is no virtual environment; name another place with VENV=."
    fi
    require_python "${PYTHON:-python3}"
    [[ -n ${clear[*]-} ]] || { mkdir -p "$VENV" && : >"$MADE"; } # an interrupted venv is ours too
    say "making the environment $VENV with $("${PYTHON:-python3}" --version)"
    "${PYTHON:-python3}" -m venv ${clear[@]+"${clear[@]}"} "$VENV" || die "python -m venv could not make $VENV (its message is above)."
    : >"$MADE"
}

# Whether fairseq's compiled parts can be built.
builds() {
    command -v "${CXX:-c++}" >/dev/null || return 1
    "$VENV/bin/python" -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}

install_fairseq() {
    if [[ -n ${WHEELS:-} ]] || builds; then
        pip install "install $FAIRSEQ (building it takes a C++ compiler and Python.h)" --no-deps --force-reinstall "$FAIRSEQ"
    elif ! "$VENV/bin/python" -m pip install -qq --no-deps --force-reinstall --only-binary :all: "$FAIRSEQ" 2>/dev/null; then
        say "there is no C++ compiler, or no Python.h: without fairseq's compiled parts, which fairseq_ext replaces"
        READTHEDOCS=1 pip install "install $FAIRSEQ" --no-deps --force-reinstall --no-cache-dir --no-binary fairseq "$FAIRSEQ"
    fi
}

ensure() {
    if [[ -f $STAMP && -x $VENV/bin/python && $(<"$STAMP") == "$(fingerprint 2>/dev/null)" ]]; then
        say "$VENV is up to date"
        return
    fi
    if [[ -n ${WHEELS:-} ]]; then
        [[ -d $WHEELS ]] || die "WHEELS=$WHEELS is not a folder; fill one with scripts/setup.sh --download DIR."
    fi
    make_venv
    rm -f "$STAMP"
    say "1/3 installing requirements.txt${WHEELS:+ from $WHEELS} (torch is large: minutes the first time)"
    pip install "install requirements.txt" --no-warn-conflicts -r "$ROOT/requirements.txt"
    if [[ $("$VENV/bin/python" -c 'from importlib.metadata import version; print(version("fairseq"))' 2>/dev/null) != "${FAIRSEQ#*==}" || ! -x $VENV/bin/fairseq-generate ]]; then
        say "2/3 installing $FAIRSEQ (built from its source release in about a minute where no wheel is at hand)"
        install_fairseq
    else
        say "2/3 $FAIRSEQ is there"
    fi
    say "3/3 installing fairseq_ext from $ROOT, with its start-up files"
    pip install "install fairseq_ext" --no-deps --editable "$ROOT"
    # the first run would do it as well; without a compiler torch operations run instead
    "$VENV/bin/python" -m fairseq_ext.kernels >/dev/null 2>"$STAMP.log" || say "the compiled decoder step: $(tail -1 "$STAMP.log")"
    rm -f "$STAMP.log"
    fingerprint >"$STAMP.new" && mv "$STAMP.new" "$STAMP"
    say "ready: $VENV"
}

download() {
    mkdir -p "$1" || die "cannot make the folder $1."
    make_venv
    say "1/3 wheels of requirements.txt to $1"
    pip wheel "fetch the wheels of requirements.txt" --wheel-dir "$1" --find-links "$1" -r "$ROOT/requirements.txt"
    say "2/3 building $FAIRSEQ"
    pip wheel "build $FAIRSEQ (it takes a C++ compiler)" --wheel-dir "$1" --find-links "$1" --no-deps "$FAIRSEQ"
    say "3/3 what building fairseq_ext itself needs"
    pip wheel "fetch setuptools" --wheel-dir "$1" --find-links "$1" "setuptools>=70.1"
    say "done: $(find "$1" -name '*.whl' | wc -l) wheels, $(du -sh "$1" | cut -f1); install them with WHEELS=$1 scripts/setup.sh"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    case ${1:-} in
    '') ensure ;;
    --download) [[ -n ${2:-} ]] || die "--download needs a folder." && download "$2" ;;
    -h | --help) usage "$0" ;;
    *) die "unknown argument '$1'; see scripts/setup.sh --help." ;;
    esac
else
    case " $* " in *" -h "* | *" --help "*) usage "$0" && exit ;; esac
    ensure
    export VENV PATH="$VENV/bin:$PATH"
fi
