#!/bin/sh
# readmes.sh CHECK FILE...: prints one line per fault that a check finds in READMEs, and ends with status 1 if there is
# one. Run it in the root of the tree. Checks: headings, links, citations, figures, quotes, widths, plans; run-this,
# predict, commands (run them).
set -u
check=$1
shift
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
fault() {
    echo "$file: $*" | tee -a "$dir/faults"
}

# The shape of a program's README. Sections of other names stand between Costs and Pitfalls. It ends with "In short"
# and what libraries call it, "In PyTorch ...".
headings() {
    number=$(basename "$(dirname "$file")" | cut -c 1-2)
    awk -v title="# $number: " '
        BEGIN {count = split("The picture|The formula|Read these .* places in [a-z]*[.]c.*|Run this|Costs|Pitfalls|" \
                             "Exercises|In short|In [A-Z].*", heading, "|")}
        NR == 1 && index($0, title) != 1 {print "expected the title \"" title "...\" in its first line"}
        /^```/ {fenced = !fenced}
        !found {intro = intro " " $0}
        fenced || !/^## / {next}
        found < count && $0 ~ "^## " heading[found + 1] "$" {found++; next}
        found != 5 {print "found \"" $0 "\", expected " (found < count ? heading[found + 1] : "no other section")}
        END {
            if (found < count) print "has no \"## " heading[found + 1] "\" in its place"
            if (intro !~ /Playbook: \[[*]/) print "expected \"Playbook: \" with a link before its first section"
        }' "$file"
}

# Links to files of the repository, ](PATH#ANCHOR) outside of fenced blocks: the file exists, and has the heading that
# GitHub makes the anchor of.
links() {
    awk '/^```/ {fenced = !fenced}
        !fenced {
            for (line = $0; match(line, /\]\([^)]*/); line = substr(line, RSTART + RLENGTH))
                print substr(line, RSTART + 2, RLENGTH - 2)
        }' "$file" | grep -v '^http' | while read -r link; do
        target=$(dirname "$file")/${link%%#*}
        [ "${link#\#}" = "$link" ] || target=$file
        [ -e "$target" ] || { echo "links to $link, which does not exist"; continue; }
        [ "${link#*\#}" = "$link" ] || anchors "$target" | grep -qxF -- "${link#*\#}" ||
            echo "links to $link, but $target has no such heading"
    done
}
anchors() {
    awk '/^```/ {fenced = !fenced} !fenced && /^#+ /' "$1" | tr 'A-Z ' 'a-z-' | sed 's/^#*-//; s/[^a-z0-9_-]//g'
}

# A paper is cited as [Author et al. YEAR](address).
citations() {
    awk '/^```/ {fenced = !fenced} !fenced' "$file" | tr '\n' ' ' | sed 's/\[[^]]*\](http[^)]*)//g' |
        grep -oE '[A-Z][a-z]+ (et al[.]|&|and) [^ ]* ?\(?(19|20)[0-9]{2}' | sed 's/^/has no link: /'
}

# A figure's title, which browsers show and screen readers read, is its alternative text, on one line (figures.sh).
figures() {
    grep -n '^!\[[^]]*$' "$file" | sed 's/^/the alternative text goes over two lines: /'
    sed -n 's/.*!\[\(.*\)\](\([0-9a-z_/]*\.svg\)).*/\2 \1/p' "$file" | while read -r figure title; do
        grep -qF "<title>$title</title>" "$(dirname "$file")/$figure" || echo "the title of $figure is not \"$title\""
    done
}

# The front page's ```diff block has lines of 01 and of 03, and its table each program's lines of code.
quotes() {
    awk '/^```/ {on = /diff/; next}
        / [.][.][.]$/ {next}
        on && !/^[+]/ {print "01_single_gpu/train.c " substr($0, 2)}
        on && !/^[-]/ {print "03_data_parallel/train.c " substr($0, 2)}' "$file" >"$dir/quoted"
    [ "$(wc -l <"$file")" -le 223 ] || echo "has more than 223 lines"
    [ -s "$dir/quoted" ] || echo 'has no ```diff block'
    while read -r program text; do
        grep -qF -- "$text" "$program" || echo "$program has no \"$text\""
    done <"$dir/quoted"
    grep -oE '\[[0-9]+\]\([0-9a-z_]+/[a-z]+[.]c\)' "$file" | tr -d '[]' | tr '()' '  ' | while read -r lines program; do
        [ "$(wc -l <"$program")" -eq "$lines" ] || echo "$program does not have $lines lines"
    done
}

# The workshop's plans: in a table of run_sheet.md each row begins when the one before ends, and its exercises take no
# more than its minutes; the tables of instructors.md count what the chapters' exercises.md have.
plans() {
    for list in [0-9][0-9]_*/exercises.md; do
        sed -n "s/^## \([0-9]*\)[.] .*(\([a-z]*\), \([0-9]*\) minutes)$/${list%%_*} \1 \2 \3/p" "$list"
    done >"$dir/exercises"
    awk -F '|' '
        function clock(text, part) {split(text, part, ":"); return 60 * part[1] + part[2]}
        function minutes_of(text, sum) {
            for (sum = 0; match(text, /[0-9][0-9][.][0-9]/); text = substr(text, RSTART + 4)) {
                name = substr(text, RSTART, 4)
                if (!(name in minutes)) print "there is no exercise " name
                sum += minutes[name]
            }
            return sum
        }
        FNR == NR {split($0, e, " "); minutes[e[1] "." e[2]] = e[4]; count[e[3], e[1]]++; count["minutes", e[1]] += e[4]
            count[e[3], "all"]++; count["minutes", "all"] += e[4]; next}
        /^## .*[0-9]:[0-9][0-9] to / {
            match($0, /[0-9]+:[0-9][0-9] to [0-9]+:[0-9][0-9]/)
            split(substr($0, RSTART, RLENGTH), span, " to "); now = clock(span[1]); plan = $0; plans++
        }
        /^\| [0-9]+:[0-9][0-9] \|/ {
            if (clock($2) != now) print "row \"" $2 "\" of " plan " does not begin when the row before it ends"
            now = clock($2) + $3; end[plan] = now; wanted[plan] = clock(span[2])
            if ($4 ~ /^ exercises? [0-9.,  ]*$/ && minutes_of($4) > $3) print "too few minutes in" $2 "of " plan ":" $4
        }
        /^\| \[[0-9][0-9]\]/ && NF == 8 {
            split($7, room, ":")
            if (minutes_of(room[1]) != room[2] + 0) print "the minutes of the exercises are others:" $7
        }
        /^\| +\| 00 \|/ {for (i = 3; i < NF; i++) column[i] = $i + 0 || $i ~ /0/ ? substr($i, 2, 2) : "all"}
        /^\| (easy|medium|hard|minutes) \|/ && 3 in column {
            split($2, kind, " ")
            for (i = 3; i < NF; i++)
                if ($i + 0 != count[kind[1], column[i]] + 0)
                    print kind[1] " of " column[i] ": " $i ", but exercises.md has " count[kind[1], column[i]] + 0
        }
        END {
            for (plan in end) if (end[plan] != wanted[plan]) print plan " has " wanted[plan] - end[plan] " minutes left"
            if (FILENAME ~ /run_sheet/ && plans != 3) print "has " plans + 0 " plans"
        }' "$dir/exercises" "$file"
}

# GitHub shows 92 columns of a fenced block.
widths() {
    awk '/^```/ {fenced = !fenced; next} fenced' "$file" | LC_ALL=C.UTF-8 grep -E '.{93}' |
        sed 's/^/has a fenced line of more than 92 columns: /'
}

# Runs a command that a reader would type.
run() {
    timeout 600 sh -c "$1" </dev/null >"$dir/out" 2>"$dir/err" && return
    echo "$1: status $?"
    head -c 2000 "$dir/err"
    return 1
}

# Runs the command in the first line of $dir/block (a line may end in \). The other lines must be in its output, in this
# order. White space does not count, "..." alone stands for lines left out, and "<-" begins a note.
compare() {
    sed -e ':more' -e '/\\$/N; s/\\\n//; tmore' "$dir/block" >"$dir/joined"
    command=$(head -n 1 "$dir/joined")
    run "$command" || return
    for f in joined out; do
        sed 's/<-.*//; s/[[:space:]][[:space:]]*/ /g; s/^ //; s/ $//' "$dir/$f" >"$dir/$f.squeezed"
    done
    sed 1d "$dir/joined.squeezed" | awk -v output="$dir/out.squeezed" '
        /^$/ || /^\.\.\.$/ {next}
        {
            while ((more = (getline line <output)) > 0 && !index(line, $0)) {}
            if (more <= 0) {print "the output lacks, or has in another place: " $0; exit}
        }'
}

# The first fenced block under "Run this".
run_this() {
    awk '/^## / {on = /^## Run this$/} on && /^```/ && fences++ == 1 {exit} on && fences == 1 && !/^```/' "$file" \
        >"$dir/block"
    [ -s "$dir/block" ] || echo 'its section "Run this" has no fenced block with a command in the first line'
    [ ! -s "$dir/block" ] || compare
}

# The boxes "> **Predict.**": a question, a folded answer, and in it a fenced block with a command and lines of its
# output. These lines have every number that the answer prints in bold.
predict() {
    boxes=$(grep -c '^> \*\*Predict\.\*\*' "$file")
    [ "$boxes" -ge 2 ] || echo "has $boxes boxes \"> **Predict.**\", expected at least 2"
    grep -q '^> \*\*Rule\.\*\*' "$file" || echo 'has no box "> **Rule.**"'
    for box in $(seq "$boxes"); do
        awk -v box="$box" -v dir="$dir" '
            /^> \*\*Predict\.\*\*/ {count++}
            count != box || done {next}
            /^<details><summary>Answer, and the run that shows it/ {answer = 1}
            answer && /^```/ {block++; next}
            block == 1 {print >(dir "/block")}
            answer && !block {print >(dir "/answer")}
            /^<\/details>/ {done = 1}
            BEGIN {printf "" >(dir "/block"); printf "" >(dir "/answer")}' "$file"
        grep -o '\*\*[^*]*\*\*' "$dir/answer" | tr -d '*' | grep '[0-9]' >"$dir/bold"
        [ -s "$dir/bold" ] || echo "box $box: its answer has no number in bold"
        compare | sed "s/^/box $box: /"
        while read -r number; do
            sed '1d; s/<-.*//' "$dir/joined" | grep -qwF -- "$number" || echo "box $box: no line of the run has $number"
        done <"$dir/bold"
    done
}

# Runs all commands in fenced blocks, but those that would run for long, run this again, or fail by design.
commands() {
    awk -v dir="$dir" '
        /^```/ {fenced = !fenced; python = /python/; gpu = 0; more = 0; next}
        !fenced || python {next}
        /^#.*needs a GPU/ {gpu = 1}
        !more && !/^(make |mpiexec |build\/|tests\/|for )/ {next}
        !more {file = dir "/" ++count ".sh"; loop = /^for /}
        !gpu {print >file}
        {more = /\\$/ || (loop && !/done/)}' "$file"
    for i in $(ls "$dir" | sed -n 's/\.sh$//p' | sort -n); do
        command=$(cat "$dir/$i.sh")
        case $command in
        *"needs a GPU"* | "make verify "*" N="* | "make test"* | "make figures"* | "make bench"* | \
            "make cuda"*) echo "$file: skipped: $command" >&2 ;;
        *) run "$command" ;;
        esac
    done
    rm -f "$dir"/*.sh
}

for file in "$@"; do
    case $check in
    headings | links | citations | figures | quotes | widths | plans | predict | commands) $check ;;
    run-this) run_this ;;
    esac >"$dir/found"
    [ ! -s "$dir/found" ] || fault "$(cat "$dir/found")"
done
[ ! -e "$dir/faults" ]
