#!/bin/sh
# Makes an exercise: a copy of a stage with a part taken out.
#   exercise.sh STAGE            lists the stage's exercises
#   exercise.sh STAGE N DIR      makes number N in DIR, which must not be there yet
# STAGE/exercises.md says what each takes out, as diffs of the stage's own text: so what is taken out is always the text
# that is there, and the answer is the stage itself.
set -eu
stage=$1
list=$stage/exercises.md
number=${stage%%_*}
if [ $# -lt 3 ]; then
    sed -n "s/^## \([0-9]*\)\. \(.*\)/  make exercise STAGE=$number N=\1    \2/p" "$list"
    exit 0
fi
n=$2
to=$3
case $n in *[!0-9]*) found="" ;; *) found=$(grep "^## $n\. " "$list") || true ;; esac
[ -n "$found" ] || { echo "$stage has no exercise $n; it has:"; "$0" "$stage"; exit 2; }
if [ -e "$to" ]; then
    echo "$to is there already, with what you have done in it; to begin anew: rm -r $to"
    exit 2
fi

mkdir -p "$to.new"
cp "$stage"/*.[ch] "$to.new"
ln -sfn "$PWD/common" "$(dirname "$to")/common"         # programs include ../common/ultrascale.h
awk -v want="$n" -v name="$number.$n" -v dir="$to.new" '
    # The task as a C comment at an indentation, in lines of at most 100 columns.
    function comment(indent,    words, count, i, line, text) {
        count = split(task, words, " ")
        line = indent "/* EXERCISE " name ":"
        for (i = 1; i <= count; i++) {
            if (length(line) + length(words[i]) + 1 > 100) { text = text line "\n"; line = indent " *" }
            line = line " " words[i]
        }
        return text line "\n" indent " * make verify STAGE=" substr(name, 1, 2) " N=" want " */\n"
    }
    # Replaces the one place of `file` that has the old lines.
    function replace(    text, line, indent, at, again, path) {
        path = dir "/" file
        text = ""
        while ((getline line < path) > 0) text = text line "\n"
        close(path)
        at = index(text, old)
        again = at ? index(substr(text, at + 1), old) : 0
        if (!at || again) {
            printf "exercise %s: what it takes out is %s %s\n", name, at ? "more than once in" : "not in", file
            failed = 1
            return
        }
        printf "%s%s%s", substr(text, 1, at - 1), new, substr(text, at + length(old)) > path
        close(path)
    }
    /^## /            { here = ($2 == want "."); task = ""; blocks = 0; next }
    !here             { next }
    /^```diff/        { inside = 1; file = $2 ? $2 : "train.c"; old = new = ""; marked = 0; blocks++; next }
    /^```/ && inside  { inside = 0; replace(); next }
    inside {
        sign = substr($0, 1, 1); line = substr($0, 2)
        if (sign != " " && sign != "" && !marked) {
            match(line, /^ */)
            indent = substr(line, 1, RLENGTH)
            new = new (blocks == 1 ? comment(indent) : indent "/* EXERCISE " name ", here too */\n")
            marked = 1
        }
        if (sign != "+") old = old line "\n"
        if (sign != "-") new = new line "\n"
        next
    }
    /^<details>/ || /^At first/ { told = 1 }
    blocks == 0 && !/^<|^At first/ { task = task " " $0 }
    END { exit failed }
' "$list" || { rm -r "$to.new"; exit 1; }
mv "$to.new" "$to"
where=$(grep -Hn "EXERCISE $number.$n" "$to"/*.c | head -n 1 | cut -d: -f1,2)
echo "the task is in $where"
echo "when you have done it: make verify STAGE=$number N=$n"
