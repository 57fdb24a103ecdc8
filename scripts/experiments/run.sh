#!/usr/bin/env bash
# Runs every paper's experiments on one model and text, and fairseq's constrained search beside DBA (its 84 searches are the slowest part),
# and, with --into, writes the sources of docs/results.
#
#   scripts/experiments/run.sh --model DIR --text PREFIX [--only PAPER] [--limit N] [--src de] [--tgt en] [--dev PREFIX]
#                              [--lsh DIR] [--parsing DIR] [--trees DIR] [--out DIR] [--name NAME] [--into ROOT]
#                              [-- ARGUMENTS OF THE PAPER'S run.py, or of scripts/bench/constrained.py]
#
#   --model DIR       checkpoint.pt, dict.*.txt and, for SentencePiece, spm.model
#   --text PREFIX     what is translated: PREFIX.de and PREFIX.en; --limit N: its first lines only
#   --only PAPER      constrained (fairseq's own constrained search beside DBA), dba, jacobi, lsh, optimal_ending, streaming or terminology;
#                     arguments after -- need it
#   --dev PREFIX      for tuned rewards and streaming's Table 5 (dev or val beside the text)
#   --lsh DIR         Multi30k's text, from which LSH's own model of many words is trained; or the folder of the trained one
#   --parsing DIR     atis and geo, for streaming's semantic parsing; --trees DIR: {train,dev,test}.trees, for its syntactic parsing
#   --out DIR         keeps what is done: a run that was stopped goes on (runs/experiments/NAME)
#   --name NAME       of the results (the names of model and text with their folders', and N)
#   --into ROOT       the checkout that gets the results, and whose pages are filled (none: OUT/PAPER/tables.md)
#
# Papers whose text or model is missing are left out with a sentence; --only refuses them.
# A folder of --out keeps its first commit: delete it to measure changed code anew. PYTHON= names another interpreter.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
PAPERS=(dba constrained optimal_ending streaming jacobi terminology lsh)
MODEL='' TEXT='' ONLY='' LIMIT='' SRC=de TGT=en DEV='' LSH='' PARSING='' TREES='' OUT='' NAME='' INTO=''
COMMAND=run.sh
for word in "$@"; do [[ $word != *\ * ]] || word="'$word'"; COMMAND+=" $word"; done
die() { echo "run.sh: $*" >&2; exit 2; }
while (($#)); do
    case $1 in
    -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit ;;
    --) shift; break ;;
    --model | --text | --only | --limit | --src | --tgt | --dev | --lsh | --parsing | --trees | --out | --name | --into)
        (($# > 1)) || die "$1 wants a value"
        variable=${1#--}
        printf -v "${variable^^}" %s "$2"
        shift 2 ;;
    *) die "unknown argument '$1'; see scripts/experiments/run.sh --help" ;;
    esac
done
[[ -n $MODEL && -n $TEXT ]] || die "--model DIR and --text PREFIX are needed"
[[ -f $MODEL/checkpoint.pt ]] || die "$MODEL/checkpoint.pt is missing: --model wants a folder with checkpoint.pt, dict.*.txt and spm.model"
for file in "$TEXT.$SRC" "$TEXT.$TGT"; do [[ -f $file ]] || die "$file is missing: --text wants a prefix of two files"; done
[[ -z $LIMIT || $LIMIT =~ ^[1-9][0-9]*$ ]] || die "--limit wants a number of lines, not '$LIMIT'"
[[ -z $ONLY || " ${PAPERS[*]} " == *" $ONLY "* ]] || die "--only $ONLY is none of ${PAPERS[*]}"
(($# == 0)) || [[ -n $ONLY ]] || die "arguments after -- are one paper's: name it with --only"
both() { [[ -f $1.$SRC && -f $1.$TGT ]]; }
beside=$(dirname "$TEXT")
for name in dev val; do [[ -n $DEV ]] || ! both "$beside/$name" || DEV=$beside/$name; done
for prefix in ${DEV:+"$DEV"}; do both "$prefix" || die "$prefix.$SRC or $prefix.$TGT is missing"; done
place() { local path; path=$(realpath -m "$1"); echo "$(basename "$(dirname "$path")").$(basename "$path")"; }
NAME=${NAME:-$(place "$MODEL").$(place "$TEXT")${LIMIT:+.$LIMIT}}
OUT=${OUT:-$ROOT/runs/experiments/$NAME}
export PYTHON=${PYTHON:-$(if [[ -x $ROOT/.venv/bin/python ]]; then echo "$ROOT/.venv/bin/python"; else echo python3; fi)}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

text=(--model "$MODEL" --text "$TEXT" --src "$SRC" --tgt "$TGT")
lines=(${LIMIT:+--limit "$LIMIT"})
# What a paper lacks, one sentence; nothing where it can run.
lacks() {
    case $1 in
    optimal_ending | streaming) [[ -n $DEV ]] || echo "--dev PREFIX is needed: neither dev nor val lies beside the text" ;;
    lsh) [[ -n $LSH || -f $OUT/lsh/checkpoint.pt ]] || echo "--lsh DIR is needed: LSH has a model of its own" ;;
    esac
}
experiments() {
    local paper=$1 out=$OUT/$1
    local run=("$PYTHON" "$HERE/$paper/run.py" --out "$out")
    shift
    case $paper in
    dba | terminology) "${run[@]}" "${text[@]}" "${lines[@]}" "$@" ;;
    constrained) # fairseq's own search beside DBA
        "$PYTHON" "$ROOT/scripts/bench/constrained.py" --out "$out/parts/quality" --parts quality --threads 1 "${text[@]}" "${lines[@]}" "$@"
        cp "$out/parts/quality.md" "$out/tables.md" ;;
    optimal_ending) "${run[@]}" "${text[@]}" --dev "$DEV" "${lines[@]}" --time-limit "${LIMIT:-200}" "$@" ;;
    streaming)
        "${run[@]}" "${text[@]}" --dev "$DEV" ${PARSING:+--raw "$PARSING"} ${TREES:+--trees "$TREES"} \
            ${LIMIT:+--limit "$LIMIT" --mixed-limit "$LIMIT"} --cpu-time "$@" ;;
    jacobi)
        "${run[@]}" --models "$MODEL" --pairs "$SRC-$TGT" --text "$TEXT" --limit "${LIMIT:-$(wc -l <"$TEXT.$SRC")}" "$@" ;;
    lsh)
        local work=(--raw "$LSH")
        [[ ! -f $LSH/checkpoint.pt ]] || work=(--work "$LSH")
        [[ -n $LSH ]] || work=()
        [[ -n $LSH && -f $LSH/checkpoint.pt ]] || work+=(--work "$out")
        "${run[@]}" "${work[@]}" ${LIMIT:+--sentences "$LIMIT"} "$@" ;;
    esac
}
for paper in ${ONLY:-"${PAPERS[@]}"}; do
    missing=$(lacks "$paper")
    if [[ -n $missing ]]; then
        [[ -z $ONLY ]] || die "$paper: $missing"
        echo "run.sh: left out $paper: $missing" >&2
        continue
    fi
    echo "run.sh: $paper, results in $OUT/$paper" >&2
    "$PYTHON" "$HERE/publish.py" begin --out "$OUT/$paper"
    experiments "$paper" "$@" >&2
    [[ -z $INTO ]] || "$PYTHON" "$HERE/publish.py" finish --out "$OUT/$paper" --paper "$paper" --name "$NAME" --into "$INTO" --command "$COMMAND"
done
[[ -z $INTO || ! -f $INTO/scripts/docs.py ]] || "$PYTHON" "$INTO/scripts/docs.py" --write --quick >&2
