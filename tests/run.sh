#!/bin/sh
# Runs test programs one after the other and prints the time of each. --full: all cases, not a covering subset.
export ULTRASCALE_TESTS=covering
# For sanitizers: MPICH leaks memory in modules that it has unloaded, which no suppression can name.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
. tools/machine/open_mpi.sh
# A test's ranks are on one machine. In some containers' networks Open MPI 5 prints warnings.
export OMPI_MCA_btl=^tcp
[ "$1" = --full ] && { export ULTRASCALE_TESTS=full; shift; }
unset FULL              # of "make test-full": a make that a test starts runs what a user's would
failed=""
for test in "$@"; do
    begin=$(date +%s)
    echo "== $test"
    "$test" || failed="$failed $test"
    echo "== $test took $(($(date +%s) - begin)) s"
done
[ -z "$failed" ] || { echo "FAILED:$failed"; exit 1; }
echo "all test programs passed"
