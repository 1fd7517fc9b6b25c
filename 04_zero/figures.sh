# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# Bytes per rank by category, for 03 and each ZeRO stage: x, ranks, megabytes.
model="--layers 4 --hidden 128 --heads 4 --seq 32 --micro-batch 1 --accumulate 1 --steps 1 --threads 1 --quiet"
: >"$work/memory"
x=0
for program in "03_data_parallel" "04_zero --zero 1" "04_zero --zero 2" "04_zero --zero 3"; do
    echo "$program on 1, 2, 4 and 8 ranks"
    for n in 1 2 4 8; do
        mpiexec -n $n build/cpu/$program $model --report "$work/report"
        fields | awk -v x=$x -v n=$n '
            /"(parameters|gradients|optimizer|communication)":/ { gsub(/[",: {\t]/, ""); name = $0 }
            /"measured":/ && name { gsub(/[",]/, ""); value[name] = $2 / 1e6; name = "" }
            /"total":/ {
                print x, n, value["parameters"], value["gradients"], value["optimizer"], value["communication"] + 0
                exit
            }' >>"$work/memory"
        x=$((x + 1))
    done
    x=$((x + 1))
done
gnuplot -e "work='$work'" 04_zero/memory.gnuplot
echo "drew 04_zero/memory.svg"
