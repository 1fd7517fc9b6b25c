#!/bin/sh
# Shows what a program's train.c changes in that of its base, function by function, without the comment at the top.
#   changes.sh STAGE          a table: function, its lines, lines added and removed; for 09, whose functions come from
#                             all programs, against the program whose function is most alike
#   changes.sh --diff STAGE   the changes themselves, coloured on a terminal; FULL=1: full text of changed functions
#   changes.sh --update       writes the tables into the READMEs of the programs, between the two marks
#   changes.sh --check        fails if a table in a README is out of date
set -eu
cd "$(dirname "$0")/../.."

base_of() {
    case $1 in
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
            for (i = first; i <= n; i++) if (held[i] ~ /^[a-z].*\(/) { name = held[i]; break }
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
if [ $mode = diff ]; then
    mkdir "$work/$base" "$work/$stage"          # with the same comment at the top, so that line numbers stay
    { head_of "$stage/train.c"; below "$base/train.c"; } >"$work/$base/train.c"
    cp "$stage/train.c" "$work/$stage/train.c"
    cd "$work"
    colour=never
    [ -t 1 ] && colour=always
    command -v git >/dev/null || { diff -u "$base/train.c" "$stage/train.c" || true; exit 0; }
    # shellcheck disable=SC2086
    git --no-pager diff --no-index --color=$colour ${FULL:+--function-context} "$base/train.c" "$stage/train.c" || true
    exit 0
fi
# Lines added and removed in function $2 (a file) relative to $1, which may be missing: "3 1".
count() {
    [ -f "$1" ] || : >"$1"
    { diff "$1" "$2" || true; } | awk '/^>/ { a++ } /^</ { r++ } END { print a + 0, r + 0 }'
}
# Splits the functions of a program into files in $work/PROGRAM.
functions() {
    below "$1/train.c" >"$work/train.c"
    split "$work/train.c" "$work/$1"
}
# The names of functions in the order of the program, then those in $1 that the program lacks.
names() {
    { echo "(top)"; grep -oE '^[a-z].*\(' "$stage/train.c" | sed 's/(.*//; s/.*[ *]//'; ls "$work/$stage" $1; } |
        awk '!seen[$0]++'
}
functions "$stage"
case $stage in
09_*)
    programs=$(ls -d 0[1-8]_*)
    for program in $programs; do functions "$program"; done
    printf '| in `%s/train.c` | lines | nearest | added | removed |\n|---|--:|---|--:|--:|\n' "$stage"
    names "" | while read -r name; do
        [ -f "$work/$stage/$name" ] || continue
        lines=$(wc -l <"$work/$stage/$name")
        set -- new "$lines" 0                   # unless a quarter of it is from another program
        most=$((lines * 3 / 4))
        for program in $programs; do
            [ -f "$work/$program/$name" ] || continue
            changed=$(count "$work/$program/$name" "$work/$stage/$name")
            [ "${changed% *}" -gt "$most" ] || set -- "${program%%_*}" $changed
            [ "$1" = new ] || most=$(($2 - 1))
        done
        printf '| `%s` | %d | %s | +%d | -%d |\n' "$name" "$lines" "$1" "$2" "$3"
    done
    exit 0
    ;;
esac
functions "$base"
printf '| in `%s/train.c` | lines | added | removed |\n|---|--:|--:|--:|\n' "$stage"
names "$work/$base" | while read -r name; do
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
