#!/bin/sh
# Checks the lines of C, CUDA and shell: at most 120 columns, no blanks at the end, no tabs. Argument: another root.
set -eu
cd "${1:-$(dirname "$0")/..}"
find . -path ./build -prune -o -type f \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \
    -o -name '*.sh' \) -print | xargs env LC_ALL=C awk '
    function wrong(what) { print FILENAME ":" FNR ": " what; found = 1 }
    { columns = $0; gsub(/[\200-\277]/, "", columns) }          # in UTF-8 these continue a character
    length(columns) > 120 { wrong("has more than 120 columns") }
    /[ \t]$/ { wrong("ends with a blank") }
    /\t/ { wrong("has a tab") }
    END { exit found }' || exit 1
