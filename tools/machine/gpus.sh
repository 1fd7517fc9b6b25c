#!/bin/sh
# gpus.sh NVCC: prints what NVCC builds for this machine's GPUs: "sm_80 sm_89", or "compute_90", PTX that the driver
# compiles for a later GPU. If none can be used, a sentence says why, in which no word begins with sm_ or compute_.
# Without a GPU nothing is printed.
# gpus.sh --nvcc NVCC: prints why NVCC cannot be used, or nothing.
set -u
mode=""
[ "${1-}" != --nvcc ] || { mode=$1; shift; }
nvcc=${1-}

why="nvcc, of the NVIDIA CUDA toolkit, is not in PATH"
[ -z "$nvcc" ] || why=$("$nvcc" --version 2>/dev/null |
    sed -nE 's/.*release (([0-9]|1[01])\.[0-9]+),.*/nvcc is of CUDA \1, but 12.0 or later is needed/p')
if [ "$mode" = --nvcc ]; then
    echo "$why"
elif ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then        # a broken driver is reported on stdout too
    :
elif [ -n "$why" ]; then
    echo "$why"
else
    gpus=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader |
        sed -nE 's/^([0-9]+)\.([0-9]+)$/\1\2/p' | sort -nu)
    known=$("$nvcc" --list-gpu-arch | sed -nE 's/^compute_([0-9]+)$/\1/p' | sort -n | awk '$1 >= 75')
    echo "${gpus:-75 80 90}" | tr ' ' '\n' | awk -v known="$known" '
        BEGIN {n = split(known, arch)}
        {
            best = 0
            for (i = 1; i <= n && arch[i] <= $1; i++)
                best = arch[i]
            if (best)
                found = found (best == $1 ? " sm_" : " compute_") best
            all = all (all ? "," : "") "sm_" $1
        }
        END {print found ? substr(found, 2) : "the GPUs here (" all ") are older than Turing (sm_75)"}'
fi
