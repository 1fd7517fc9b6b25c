# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# One step under --pretend, with the gradients' all-reduces after backward and during it.
program=build/cpu/03_data_parallel
: >"$work/timeline"
for mode in naive overlap; do
    echo "03_data_parallel --sync $mode"
    mpiexec -n 2 $program --layers 6 --hidden 128 --heads 4 --seq 64 --micro-batch 2 --accumulate 1 --quiet \
        --steps 2 --sync $mode --pretend 4,0.05,20 --trace "$work/trace"
    # the second step: forward, backward, optimizer and transfers of each rank
    tr ',{}' '   ' <"$work/trace" | awk -v top=$([ $mode = naive ] && echo 10 || echo 4) '
        /"ph":"X"/ {
            split($1, name, "\""); split($3, pid, ":"); split($4, tid, ":"); split($5, ts, ":"); split($6, dur, ":")
            color["forward"] = "0x0072b2"; color["backward"] = "0xe69f00"; color["optimizer"] = "0xcc79a7"
            color["all_reduce"] = "0xd55e00"
            what = name[4]
            if (!(what in color)) next
            n++; row[n] = top - 3 * pid[2] - (what == "all_reduce"); from[n] = ts[2]; to[n] = ts[2] + dur[2]
            kind[n] = color[what]
            if (what == "forward" && (++forwards[pid[2]]) == 2 && (start == "" || ts[2] < start)) start = ts[2]
        }
        END {
            for (i = 1; i <= n; i++)
                if (from[i] >= start) print (from[i] - start) / 1000, (to[i] - start) / 1000, row[i], kind[i]
        }
    ' >>"$work/timeline"
done
gnuplot -e "work='$work'" 03_data_parallel/timeline.gnuplot
echo "drew 03_data_parallel/timeline.svg"
