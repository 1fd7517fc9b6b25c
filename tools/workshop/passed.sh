#!/bin/sh
# Who has passed which exercises.
#   passed.sh NAME                   writes build/exercise/passed_NAME.txt: each exercise that has passed, with its
#                                    attempts, commit, hash and the solution as a patch of the exercise
#   passed.sh --check DIR MINIMUM    verifies the summaries in DIR: each solution is built again from its patch, must
#                                    have its hash, and passes make verify once more. Equal solutions are verified once.
#                                    MINIMUM, if not empty: exercises that a participant needs.
# A solution is a program that runs on this machine: check summaries of strangers in a container.
set -eu
cd "$(dirname "$0")/../.."

if [ "$1" != --check ]; then
    name=${1:-$(git config user.name || id -un)}
    file=build/exercise/passed_$(printf %s "$name" | tr -c 'A-Za-z0-9.\n-' _).txt
    ls build/exercise/passed/*.* >/dev/null 2>&1 || {
        echo "no exercise has passed yet: make exercise STAGE=03 N=1, then make verify STAGE=03 N=1"
        exit 2
    }
    {
        echo "ultrascale.c: exercises passed"
        echo "name $name"
        cat build/exercise/passed/*.*
        echo "end"
    } >"$file"
    awk '/^exercise / {e = $2} /^attempts / {print "  " e, "at attempt", $2}' "$file"
    echo "hand in $file"
    exit
fi

from=$2 minimum=$3
case $minimum in *[!0-9]*) echo "MINIMUM: expected a number of exercises, got '$minimum'"; exit 2 ;; esac
[ -d "$from" ] || { echo "CHECK: there is no directory $from"; exit 2; }
ls "$from"/*.txt >/dev/null 2>&1 || { echo "CHECK: $from has no summary, which make passed writes (*.txt)"; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GIT_CEILING_DIRECTORIES="$work"                  # git apply must not find a repository around it
mkdir "$work/verified"

# split FILE DIR: a file per exercise in DIR: its patch, and beside it .fields: attempts, commit, hash.
split() {
    tr -d '\r' <"$1" | awk -v dir="$2" '
        NR == 1 && $0 != "ultrascale.c: exercises passed" {exit}
        ended {ended = 2; exit}
        /^exercise [0-9][0-9][.][0-9]+$/ {file = dir "/" $2; fields = ""; lines = 0; printf "" >file; next}
        file && lines < 4 {
            if (lines == 1 && $2 !~ /^[0-9]+$/) exit
            if ($1 != substr("passed  attemptscommit  sha256  ", 8 * lines + 1, length($1))) exit
            fields = fields " " $2
            if (++lines == 4) print fields >(file ".fields")
            next
        }
        $0 == "end" {ended = 1; next}
        file {print >file}
        END {exit ended != 1 || !file}'
}

# rebuild EXERCISE PATCH DIR HASH: makes the exercise in DIR and applies the patch; says what is wrong.
rebuild() {
    program=$(ls -d "${1%.*}"_* 2>/dev/null | head -n 1)
    [ -n "$program" ] && tools/workshop/exercise.sh "$program" "${1#*.}" "$3" >"$work/made" || {
        echo "the exercise cannot be made here: $(head -n 1 "$work/made")"
        return 1
    }
    (cd "$3" && git apply "$2" 2>"$work/apply") || { echo "its patch does not fit this version"; return 1; }
    [ "$(cat "$3"/*.[ch] | sha256sum)" = "$4  -" ] || { echo "its patch or hash was edited"; return 1; }
}

# verify EXERCISE DIR HASH: prints ok, or what make verify says; runs once for equal solutions.
verify() {
    result=$work/verified/$1-$3
    if [ ! -e "$result" ]; then
        echo "verifying $1 of $who" >&2
        if make -s --no-print-directory verify STAGE="${1%.*}" N="${1#*.}" SOLUTION="$2" </dev/null >"$work/out" 2>&1
        then
            echo ok >"$result"
        else
            says=$(grep -m 1 -o 'WRONG.*\|wasteful.*\|suspicious.*\|.*error.*' "$work/out" || tail -n 1 "$work/out")
            echo "fails: $says" >"$result"
        fi
    fi
    cat "$result"
}

summaries=0 enough=0
for file in "$from"/*.txt; do
    summaries=$((summaries + 1)) who=$(tr -d '\r' <"$file" | sed -n '2s/^name //p') passed=0 attempts=0
    who=${who:-$(basename "$file")}
    : >"$work/notes"
    rm -rf "$work/one"
    mkdir "$work/one"
    if ! split "$file" "$work/one"; then
        echo "  $(basename "$file") is no summary of make passed, or is cut off" >"$work/notes"
        rm -f "$work/one"/*
    fi
    for fields in "$work/one"/*.fields; do
        [ -e "$fields" ] || continue
        patch=${fields%.fields} exercise=$(basename "${fields%.fields}")
        read -r _ tries commit hash <"$fields"
        solution=$work/solution/$exercise
        rm -rf "$work/solution"
        mkdir "$work/solution"
        if says=$(rebuild "$exercise" "$patch" "$solution" "$hash") && says=$(verify "$exercise" "$solution" "$hash") &&
            [ "$says" = ok ]; then
            passed=$((passed + 1)) attempts=$((attempts + tries))
            [ "$(grep -c '^[+]' "$patch")" -le 4 ] || printf '%s\t%s\n' "$exercise-$hash" "$who" >>"$work/texts"
        else
            echo "  $exercise, from commit $commit: $says" >>"$work/notes"
        fi
    done
    printf '%-24s %2d passed, %2d attempts' "$who" $passed $attempts
    if [ -n "$minimum" ]; then
        [ $passed -lt "$minimum" ] && printf ', %d to go' $((minimum - passed)) || enough=$((enough + 1))
    fi
    echo
    cat "$work/notes"
done
echo "$summaries summaries, $(ls "$work/verified" | wc -l) different solutions$(
    [ -z "$minimum" ] || echo ", $enough with $minimum exercises or more")"
[ ! -e "$work/texts" ] || sort "$work/texts" | awk -F '\t' '
    {who[$1] = who[$1] (who[$1] ? ", " : "") $2; count[$1]++}
    END {for (t in who) if (count[t] > 1) print substr(t, 1, index(t, "-") - 1) ": the same text from " who[t]}' | sort
