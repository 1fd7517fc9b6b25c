#!/bin/sh
# Draws the READMEs' figures from new runs, as figures.sh beside each says. Needs gnuplot and "make cpu". Arguments:
# programs, as 01, or planner; without any, all.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fields() { # the fields of a --report, one per line
    tr '{},' '\n\n\n' <"$work/report"
}

for figure in ${*:-00 01 02 03 04 06 07 08 09 10 planner}; do
    script=$(ls "$figure"_*/figures.sh "tools/$figure/figures.sh" 2>/dev/null) || [ "$script" ] || {
        echo "figures.sh: $figure has no figures.sh"
        exit 2
    }
    . "./$script"
done

# The title of each figure, which browsers show and screen readers read, is its alternative text in the README.
for readme in README.md */README.md */*/README.md; do
    sed -n 's/.*!\[\(.*\)\](\([0-9a-z_/]*\.svg\)).*/\2 \1/p' "$readme" | sed 's/[&|]/\\&/g' |
        while read -r file title; do
            sed -i "0,/<title>/s|<title>.*</title>|<title>$title</title>|" "${readme%README.md}$file"
        done
done
