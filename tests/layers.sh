#!/bin/sh
# common/ in layers: each unit includes only units below it, in the order of common/ultrascale.h, bottom first. A unit is
# a header of common/ with what implements it: its .c file, or the files of a folder. An argument: another root.
set -eu
cd "${1:-$(dirname "$0")/..}"
find common -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | xargs grep -H '^#include "' | awk -F'[:"]' '
    # The unit that a file belongs to.
    function unit_of(path,    folder, name) {
        name = path
        sub(/.*\//, "", name)
        sub(/\..*/, "", name)
        folder = path
        sub(/^common\//, "", folder)
        if (match(folder, /^(comm|checkpoint|safetensors)\//)) return substr(folder, 1, RLENGTH - 1)
        if (folder ~ /^c(pu|uda)\//) return name ~ /^device/ ? "device" : "ops"
        return name ~ /^(kernels|attention)$/ ? "ops" : name
    }
    # The path of what a file includes: "../tensor.h" in common/cpu/ops.c is common/tensor.h.
    function path_of(file, included) {
        sub(/[^\/]*$/, "", file)
        while (included ~ /^\.\.\//) {
            sub(/^\.\.\//, "", included)
            sub(/[^\/]*\/$/, "", file)
        }
        return file included
    }
    $1 == "common/ultrascale.h" { place[unit_of("common/" $3)] = ++units; next }
    { file[++lines] = $1; included[lines] = path_of($1, $3) }
    END {
        for (i = 1; i <= lines; i++) {
            from = unit_of(file[i]); to = unit_of(included[i])
            if (from == to) continue
            for (k = 1; k <= 2; k++) {
                u = k == 1 ? from : to
                if (!place[u] && !said[u]++) {
                    print "common/ultrascale.h lists no " u ".h, which " (k == 1 ? file[i] " belongs to" : file[i] " includes")
                    wrong = 1
                }
            }
            if (place[from] && place[to] && place[to] > place[from]) {
                print file[i] " includes " included[i] ", but " to " stands above " from " in common/ultrascale.h"
                wrong = 1
            }
        }
        exit wrong
    }'
