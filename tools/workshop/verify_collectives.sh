#!/bin/sh
# make verify STAGE=00: runs the edited 00 (PROGRAM) on each number of RANKS. It compares its collectives with the
# library's, and prints what each costs: lines that begin with two blanks. verify_collectives.txt has the project's,
# which --record writes. A line that differs is printed beside the project's; with --exact, for exercises, it is a
# failure.
#   verify_collectives.sh PROGRAM "RANKS..." --record|--exact|--compare [OPTION...]
program=$1
ranks=$2
mode=$3
shift 3
recorded=tools/workshop/verify_collectives.txt
out=$program.out
[ "$mode" != --record ] || : >$recorded
export ASAN_OPTIONS=detect_leaks=0                  # MPICH leaks; 00 is compiled with AddressSanitizer
wasteful=0
for n in $ranks; do
    mpiexec -n "$n" "$program" --verify --check --timeout 5 "$@" >"$out" 2>&1
    status=$?
    grep -v '^  [a-z]' "$out"
    [ $status = 0 ] || exit $status
    if [ "$mode" = --record ]; then
        grep '^  [a-z]' "$out" >>$recorded
    elif ! grep '^  [a-z]' "$out" | awk -F': ' '
        NR == FNR { costs[$1] = $2; next }
        $1 in costs && $2 != costs[$1] { print $0 "; the project'"'"'s: " costs[$1]; other = 1 }
        END { exit other }' $recorded -; then
        wasteful=1
    fi
done
for op in all_reduce reduce_scatter all_gather broadcast reduce gather scatter all_to_all shift barrier; do
    mpiexec -n 3 "$program" --op $op --min 64 --max 512 --timeout 5 >"$out" 2>&1 || { cat "$out"; exit 1; }
done
[ $wasteful = 0 ] || echo "correct, but hops, bytes, groups or their formulas are not the project's"
[ "$mode" != --exact ] || exit $wasteful
