#!/bin/sh
# Shows what a program changes in its base, function by function, without the comment at the top of train.c. Files of 09
# beside train.c have functions of another program, with which each is compared.
#   changes.sh STAGE          a table: function, its lines, lines added and removed
#   changes.sh --diff STAGE   the changes themselves, coloured on a terminal; FULL=1: full text of changed functions
#   changes.sh --update       writes the tables into the READMEs of the programs, between the two marks
#   changes.sh --check        fails if a table in a README is out of date
set -eu
cd "$(dirname "$0")/../.."

base_of() {             # of a program, or of one of its files
    case $1 in
    */ring.c) echo 07_context_parallel ;;
    */pipeline.c) echo 06_pipeline_parallel ;;
    04_*) echo 03_data_parallel ;;
    08_*) echo 02_mixed_precision ;;
    09_*) echo 05_tensor_parallel ;;
    01_*) echo "" ;;
    *) echo 01_single_gpu ;;
    esac
}

# A program below the comment at its top; and that comment.
below() { awk 'done; / \*\/$/ { done = 1 }' "$1"; }
head_of() { awk '{ print } / \*\/$/ { exit }' "$1"; }

# Splits a program into $2/FUNCTION, with the comment above each, and $2/(top) for everything else.
split() {
    mkdir -p "$2"
    awk -v to="$2" '
        function flush_top() { for (i = 1; i <= n; i++) print held[i] > (to "/(top)"); n = 0 }
        inside { print > (to "/" name); if ($0 ~ /^}/) inside = 0; next }
        /^\{$/ {                            # the lines since the last empty one are the head of a function
            for (first = n; first > 1 && held[first - 1] != ""; first--) ;
            for (i = first; i <= n; i++) if (held[i] ~ /^[A-Za-z].*\(/) { name = held[i]; break }
            sub(/\(.*/, "", name); sub(/.*[ *]/, "", name)
            count = n; n = first - 1; head_from = first
            for (i = head_from; i <= count; i++) print held[i] > (to "/" name)
            flush_top(); print > (to "/" name); inside = 1; next
        }
        { held[++n] = $0 }
        END { flush_top() }' "$1"
}

mode=table
case "${1-}" in
--diff)
    mode=diff
    shift
    ;;
--update | --check)
    stale=0
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    for readme in [0-9][0-9]_*/README.md; do
        grep -q '^<!-- what changes' "$readme" || continue
        "$0" "${readme%/README.md}" >"$made/table"
        awk -v table="$made/table" '
            /^<!-- what changes/ {
                print; print ""
                while ((getline line < table) > 0) print line
                print ""; skip = 1; next
            }
            /^<!-- end/ { skip = 0 }
            !skip' "$readme" >"$made/new"
        if [ "$1" = --update ]; then
            cat "$made/new" >"$readme"
        elif ! cmp -s "$readme" "$made/new"; then
            echo "$readme: its table of changed functions is out of date: run \"make changes\""
            stale=1
        fi
    done
    exit $stale
    ;;
esac
stage=${1:?usage: changes.sh [--diff] STAGE}
base=$(base_of "$stage")
[ -n "$base" ] || { echo "$stage is the first program: it has no base"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Splits the functions of a program's file into files in $work/PROGRAM.
functions() {
    below "$1" >"$work/text"
    split "$work/text" "$work/${1%%/*}"
}
# The names of a file's functions in its order.
names() { grep -oE '^[A-Za-z].*\(' "$1" | sed 's/(.*//; s/.*[ *]//' | awk '!seen[$0]++'; }

# Lines added and removed in function $2 (a file) relative to $1, which may be missing: "3 1".
count() {
    [ -f "$1" ] || : >"$1"
    { diff "$1" "$2" || true; } | awk '/^>/ { a++ } /^</ { r++ } END { print a + 0, r + 0 }'
}

for file in "$stage/train.c" "$stage/ring.c" "$stage/pipeline.c"; do
    [ -f "$file" ] || continue
    base=$(base_of "$file")
    rm -rf "${work:?}"/*
    functions "$file"
    functions "$base/train.c"
    # Line numbers stay: the base gets the same comment at the top.
    head_of "$file" >"$work/base.c"
    case $file in
    */train.c) below "$base/train.c" >>"$work/base.c" ;;
    *)                                          # of the other program, only the functions that this file has
        rm "$work/$base/(top)"
        for name in $(names "$file"); do
            [ ! -f "$work/$base/$name" ] || { echo; cat "$work/$base/$name"; } >>"$work/base.c"
        done ;;
    esac
    if [ $mode = diff ]; then
        mkdir "$work/old" "$work/old/$base" "$work/new" "$work/new/$stage"
        cp "$work/base.c" "$work/old/$base/train.c"
        cp "$file" "$work/new/$stage"
        colour=never
        [ -t 1 ] && colour=always
        # shellcheck disable=SC2086
        (cd "$work" && git --no-pager diff --no-index --no-prefix --color=$colour ${FULL:+--function-context} \
            "old/$base/train.c" "new/$file" || true) | sed 's|\(old\|new\)/0|0|g'
        continue
    fi
    [ "${file##*/}" = train.c ] || echo
    printf '| in `%s`, from %s | lines | added | removed |\n|---|--:|--:|--:|\n' "$file" "${base%%_*}"
    { echo "(top)"; names "$file"; ls "$work/${stage%%/*}"; [ "${file##*/}" != train.c ] || ls "$work/$base"; } |
        awk '!seen[$0]++' | while read -r name; do
        new=""
        [ -f "$work/$base/$name" ] || new=" (new)"
        if [ ! -f "$work/$stage/$name" ]; then
            [ -f "$work/$base/$name" ] || continue
            : >"$work/$stage/$name"
            new=" (gone)"
        fi
        changed=$(count "$work/$base/$name" "$work/$stage/$name")
        [ "$changed" != "0 0" ] || continue
        printf '| `%s`%s | %d | +%d | -%d |\n' "$name" "$new" "$(wc -l <"$work/$stage/$name")" ${changed% *} ${changed#* }
    done
done
