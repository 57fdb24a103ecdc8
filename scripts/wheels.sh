#!/usr/bin/env bash
# Builds the wheels of a release: the package's for this machine, and fairseq_ext_demo, which holds the demo model (checkpoints/demo) for
# people without a clone.
#
#   scripts/wheels.sh [--demo] DIR
#
#   --demo     fairseq_ext_demo alone
#   DIR        where the wheels go
#
# PYTHON= names an interpreter that has pip (python3).
set -euo pipefail
case " $* " in *" -h "* | *" --help "*) sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$0" && exit ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
only_demo=
[[ "${1:-}" == --demo ]] && only_demo=1 && shift
if [[ $# -ne 1 || $1 == -* ]]; then
    echo "wheels.sh: name the folder for the wheels: scripts/wheels.sh [--demo] DIR" >&2
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/fairseq_ext_demo"
cp "$root"/checkpoints/demo/* "$work/fairseq_ext_demo"
echo '"""The demo model of fairseq_ext: Translator.from_folder("demo")."""' > "$work/fairseq_ext_demo/__init__.py"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/fairseq_ext/core/__init__.py")
cat > "$work/pyproject.toml" <<END_OF_PROJECT
[build-system]
requires = ["setuptools>=70.1"]
build-backend = "setuptools.build_meta"

[project]
name = "fairseq_ext_demo"
version = "$version"
description = "The demo model of fairseq_ext: German to English, 7 million parameters"
requires-python = ">=3.10"

[tool.setuptools]
packages = ["fairseq_ext_demo"]

[tool.setuptools.package-data]
fairseq_ext_demo = ["*"]
END_OF_PROJECT
"$python" -m pip wheel -q --no-deps --wheel-dir "$out" "$work"
if [[ -z $only_demo ]]; then
    "$python" -m pip wheel -q --no-deps --wheel-dir "$out" "$root"
fi
ls "$out"/*.whl
