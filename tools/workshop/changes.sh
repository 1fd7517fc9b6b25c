#!/bin/sh
# Shows what a program changes in its base, function by function, without the comment at the top of train.c. Files of 09
# and 11 beside train.c have functions of another program, with which each is compared.
#   changes.sh --diff STAGE   the changes, colored on a terminal; FULL=1: with the full text of changed functions
#   changes.sh --update       writes NN/DIFF.md: keeps its sentences, renews each function's heading and ```diff block
#   changes.sh --check        fails if a DIFF.md is out of date, or has a function without a sentence
set -eu
cd "$(dirname "$0")/../.."

base_of() {             # of a program, or of one of its files
    case $1 in
    */ring.c) echo 07_context_parallel ;;
    */pipeline.c | */activations.c) echo 06_pipeline_parallel ;;
    */mixture.c) echo 10_expert_parallel ;;
    04_*) echo 03_data_parallel ;;
    08_*) echo 02_mixed_precision ;;
    09_* | 12_*) echo 05_tensor_parallel ;;
    11_*) echo 09_combined ;;
    00_* | 01_*) echo "" ;;
    *) echo 01_single_gpu ;;
    esac
}

# A program below the comment at its top.
below() { awk 'done; / \*\/$/ { done = 1 }' "$1"; }

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

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# A DIFF.md with the changes in $made/new/KEY (its heading, then the lines of its ```diff block), which $made/keys lists
# in the program's order.
renew() {
    awk -v made="$made" '
        NR == FNR { keys[++n] = $0; next }
        /^## / { key = $2; gsub(/[`:,]/, "", key); in_text = 1; started = 0; next }
        key == "" { print; next }
        /^```diff/ { in_text = 0 }
        in_text && (started || NF) { started = 1; text[key] = text[key] $0 "\n" }
        END {
            for (i = 1; i <= n; i++) {
                file = made "/new/" keys[i]
                getline line <file
                printf "## %s\n\n%s```diff\n", line, text[keys[i]]
                while ((getline line <file) > 0) print line
                print "```\n"
                if (text[keys[i]] == "") missing = missing " " keys[i]
            }
            if (missing) print "no sentence:" missing >"/dev/stderr"
        }' "$made/keys" "$1" | sed '$d'
}

case "${1-}" in
--diff)
    mkdir "$made/new"
    CONTEXT=${FULL:+100000} "$0" --functions "${2:?usage: changes.sh --diff STAGE}" "$made"
    escape=$(printf '\033[') color=""
    [ ! -t 1 ] || color="s/^-.*/${escape}31m&${escape}m/; s/^+.*/${escape}32m&${escape}m/"
    while read -r key; do
        sed "$color" "$made/new/$key"
        echo
    done <"$made/keys"
    exit
    ;;
--update | --check)
    stale=0
    for page in [0-9][0-9]_*/DIFF.md; do
        rm -rf "$made/new" "$made/keys"
        mkdir "$made/new"
        "$0" --functions "${page%/DIFF.md}" "$made"
        renew "$page" >"$made/page" 2>"$made/faults"
        if [ "$1" = --update ]; then
            cat "$made/page" >"$page"
            sed "s|^|$page: |" "$made/faults"
        elif ! cmp -s "$page" "$made/page" || [ -s "$made/faults" ]; then
            echo "$page is out of date: run \"make changes\"$(sed 's/^/; /' "$made/faults")"
            stale=1
        fi
    done
    exit $stale
    ;;
esac
[ "${1-}" = --functions ] || { echo "usage: changes.sh --diff STAGE, --update, or --check" >&2; exit 2; }
stage=$2 to=$3 work=$made                       # --functions STAGE DIRECTORY, for these three
: >"$to/keys"
[ -n "$(base_of "$stage")" ] || { echo "$stage has no base: no other program has its text before it"; exit 0; }

# Splits the functions of a program's file into files in $work/PROGRAM.
functions() {
    below "$1" >"$work/text"
    split "$work/text" "$work/${1%%/*}"
}
# The names of a file's functions, in the order of their definitions.
names() {
    awk '/^[A-Za-z].*\(/ { name = $0 }
        /^\{$/ { sub(/\(.*/, "", name); sub(/.*[ *]/, "", name); print name }' "$1"
}

beside=""                                       # the files with functions of another program
for name in ring pipeline activations mixture predict; do
    file=$stage/$name.c
    [ ! -f "$file" ] || [ -z "$(names "$file")" ] || beside="$beside $file"
done
for file in "$stage/train.c" $beside; do
    base=$(base_of "$file")
    rm -rf "${work:?}"/*
    functions "$file"
    functions "$base/train.c"
    case $file in */train.c) ;; *) rm "$work/$base/(top)" ;; esac              # only functions are from there
    in_file=""
    [ "${file##*/}" = train.c ] || in_file=" in ${file##*/}"
    moved=$(for other in $beside; do names "$other"; done)
    { echo "(top)"; names "$file"; ls "$work/${stage%%/*}"; [ "${file##*/}" != train.c ] || ls "$work/$base"; } |
        awk '!seen[$0]++' | while read -r name; do
        old=$work/$base/$name new=$work/$stage/$name
        [ -f "$old" ] || [ -f "$new" ] || continue
        [ -f "$new" ] || ! echo "$moved" | grep -qx "$name" || continue     # gone to a file beside train.c
        key=$name title="\`$name\`$in_file"
        if [ "$name" = "(top)" ]; then          # without the empty lines that functions leave behind
            key=${file##*/}
            title=$key
            for top in "$old" "$new"; do
                [ ! -f "$top" ] || { cat -s "$top" >"$work/lines" && mv "$work/lines" "$top"; }
            done
        fi
        [ -f "$old" ] || { title="$title, new"; : >"$old"; }
        [ -f "$new" ] || { title="$title, gone"; : >"$new"; }
        diff -U "${CONTEXT:-3}" "$old" "$new" >"$work/lines" && continue
        {
            awk -v title="$title" 'NR > 2 && /^\+/ { a++ } NR > 2 && /^-/ { r++ }
                END { printf "%s: +%d −%d\n", title, a, r }' "$work/lines"
            sed '1,3d; s/^@@.*/@@/' "$work/lines"
        } >"$to/new/$key"
        echo "$key" >>"$to/keys"
    done
done
