#!/bin/sh
# Checks the layers of common/: each module includes only modules listed before it in common/ultrascale.h, bottom first.
# A module is a header with its implementation: a .c file, or the files of a folder. Argument: another root.
set -eu
cd "${1:-$(dirname "$0")/..}"
find common -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | xargs grep -H '^#include "' | awk -F'[:"]' '
    # Returns the module that a file belongs to.
    function module_of(path,    name) {
        name = path
        sub(/.*\//, "", name)
        sub(/\..*/, "", name)
        if (path ~ /^common\/comm\//) return "comm"
        if (path ~ /\/c(pu|uda)\//) return name ~ /^(device|allocator)/ ? "device" : "ops"
        return name == "kernels" ? "ops" : name
    }
    # Returns the path of an included file: "../tensor.h" in common/transformer/cpu/loops.c is common/base/tensor.h.
    function path_of(file, included) {
        sub(/[^\/]*$/, "", file)
        while (included ~ /^\.\.\//) {
            sub(/^\.\.\//, "", included)
            sub(/[^\/]*\/$/, "", file)
        }
        return file included
    }
    $1 == "common/ultrascale.h" { place[module_of("common/" $3)] = ++modules; next }
    { file[++lines] = $1; included[lines] = path_of($1, $3) }
    END {
        for (i = 1; i <= lines; i++) {
            from = module_of(file[i]); to = module_of(included[i])
            if (from == to) continue
            for (k = 1; k <= 2; k++) {
                u = k == 1 ? from : to
                if (!place[u] && !reported[u]++) {
                    how = k == 1 ? " belongs to" : " includes"
                    print "common/ultrascale.h lists no " u ".h, which " file[i] how
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
