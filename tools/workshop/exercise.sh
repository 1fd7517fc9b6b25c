#!/bin/sh
# Makes an exercise: a copy of a program with some code removed.
#   exercise.sh STAGE            lists the exercises of a program
#   exercise.sh STAGE N DIR      makes exercise N in DIR, which must not exist yet
#   exercise.sh --tried 05.1 STATUS DIR   notes an attempt at it, unless DIR is still as it was made, and if STATUS is 0
#                                in passed.csv when it passed, with the solution in passed/05.1
# STAGE/exercises.md has the removed code as diffs of the program's own text. So the answer is the program itself, and a
# diff that is out of date is an error. The first diff of an exercise gets the task as a comment, the others a mark. A
# diff that only removes a comment that would give the answer gets no mark.
set -eu
# The user's changes, new files too, as a patch for the directory.
changes_in() {
    for f in "$1"/*.[ch]; do
        name=${f##*/}
        old=a/$name
        [ -e "$1/.as_made/$name" ] || old=/dev/null
        diff -uN --label "$old" --label "b/$name" "$1/.as_made/$name" "$f" || true
    done
}
if [ "$1" = --tried ]; then
    [ -d "$4/.as_made" ] || { echo "$4 is of an earlier version, so no attempt counts: make it again"; exit; }
    changes=$(changes_in "$4")
    if [ -z "$changes" ]; then
        echo "nothing in $4 is changed yet, so this was no attempt"
        exit
    fi
    commit=$(git rev-parse --short HEAD 2>/dev/null || echo none)
    hash=$(cat "$4"/*.[ch] | sha256sum | cut -d ' ' -f 1)
    cd build/exercise
    echo "$2,$3" >>attempts.csv
    attempt=$(grep -c "^$2," attempts.csv)
    [ "$3" = 0 ] || exit 0
    echo "exercise $2 passed, at attempt $attempt"
    time=$(date '+%F %T')
    echo "$2,$time,$attempt" >>passed.csv
    mkdir -p passed
    printf '%s\n' "exercise $2" "passed $time" "attempts $attempt" "commit $commit" "sha256 $hash" \
        "$changes" >"passed/$2"
    exit
fi
stage=$1
list=$stage/exercises.md
number=${stage%%_*}
[ -f "$list" ] || { echo "$stage has no exercises"; exit 2; }
if [ $# -lt 3 ]; then
    sed -n "s/^## \([0-9]*\)\. \(.*\)/  make exercise STAGE=$number N=\1    \2/p" "$list"
    exit 0
fi
n=$2
to=$3
case $n in *[!0-9]*) found="" ;; *) found=$(grep "^## $n\. " "$list") || true ;; esac
[ -n "$found" ] || { echo "$stage has no exercise $n; it has:"; "$0" "$stage"; exit 2; }
if [ -e "$to" ]; then
    echo "$to exists already, with your work in it; to start again: rm -r $to"
    exit 2
fi

mkdir -p "$to.new"
cp "$stage"/*.[ch] "$to.new"
for d in $(sed -n 's|^#include "\.\./\([^/]*\)/.*|\1|p' "$stage"/*.[ch] | sort -u); do
    ln -sfn "$PWD/$d" "$(dirname "$to")/$d"             # directories of includes: ../common, ../08_fused_kernels
done
awk -v want="$n" -v name="$number.$n" -v stage="$stage" -v paths="$(echo "$to.new"/*.c)" '
    # The task as an indented C comment, in lines of at most 100 columns.
    function comment(indent,    words, count, i, line, text) {
        count = split(task, words, " ")
        line = indent "/* EXERCISE " name ":"
        for (i = 1; i <= count; i++) {
            if (length(line) + length(words[i]) + 1 > 100) { text = text line "\n"; line = indent " *" }
            line = line " " words[i]
        }
        return text line "\n" indent " * make verify STAGE=" substr(name, 1, 2) " N=" want " */\n"
    }
    # Replaces the only place in the program that has the old lines.
    function replace(    path, files, i, line, text, at, found, before, after) {
        files = split(paths, path, " ")
        found = 0
        for (i = 1; i <= files; i++) {
            text = ""
            while ((getline line < path[i]) > 0) text = text line "\n"
            close(path[i])
            while ((at = index(text, old)) && ++found == 1) {
                before = substr(text, 1, at - 1); after = substr(text, at + length(old)); to = path[i]
                text = after
            }
        }
        if (found != 1) {
            failed = failed ? failed : found ? "more than once" : "no longer"
            return
        }
        printf "%s%s%s", before, new, after > to
        close(to)
    }
    /^## /            { here = ($2 == want "."); task = ""; told = blocks = 0; next }
    !here             { next }
    /^```diff/        { inside = 1; old = new = ""; marked = 0; blocks++; next }
    /^```/ && inside  { inside = 0; replace(); next }
    inside {
        sign = substr($0, 1, 1); line = substr($0, 2)
        if (sign != " " && sign != "" && !marked && line !~ /^ *(\/\*| \*)/) {
            match(line, /^ */)
            indent = substr(line, 1, RLENGTH)
            new = new (blocks == 1 ? comment(indent) : indent "/* EXERCISE " name ", also here */\n")
            marked = 1
        }
        if (sign != "+") old = old line "\n"
        if (sign != "-") new = new line "\n"
        next
    }
    /^<details>/ || /^Before you start/ { told = 1 }
    !told             { task = task " " $0 }
    END {
        if (failed) {
            printf "exercise %s removes lines of %s, which are there %s: ", name, stage, failed
            printf "did you change it? "
            printf "\"git stash\" puts your changes aside (\"git stash pop\" brings them back), "
            printf "\"git checkout -- %s\" discards them\n", stage
        }
        exit failed != ""
    }
' "$list" || { rm -r "$to.new"; exit 1; }
mkdir "$to.new/.as_made"
cp "$to.new"/*.[ch] "$to.new/.as_made"
mv "$to.new" "$to"
where=$(grep -Hn "EXERCISE $number.$n" "$to"/*.c | head -n 1 | cut -d: -f1,2)
echo "the task is in $where"
echo "when you are done: make verify STAGE=$number N=$n"
