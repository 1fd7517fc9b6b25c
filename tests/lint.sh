#!/bin/sh
# Runs clang-tidy on the project, in float and in double, with the checks of .clang-tidy. Arguments: -I options for
# MPI, BLAS and NCCL.
set -eu
cd "$(dirname "$0")/.."
command -v clang-tidy >/dev/null ||
    { echo "clang-tidy is not installed (apt-get install clang-tidy libomp-dev)"; exit 1; }
without=comm/nccl.c             # unless its headers are found
printf '#include <nccl.h>\n' | cc "$@" -E - >/dev/null 2>&1 && without=nothing
for real in "" -DREAL64; do
    # shellcheck disable=SC2046
    clang-tidy --quiet $(ls common/*/*.c common/*/*/*.c [0-9][0-9]_*/*.c [0-9][0-9]_*/*/*.c tools/planner/*.c |
        grep -v "$without") -- -std=c11 -D_GNU_SOURCE -fopenmp -DSOURCE='"."' -DVERSION='"1"' $real "$@"
done
echo "clean"
