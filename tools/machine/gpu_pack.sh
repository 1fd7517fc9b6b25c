#!/usr/bin/env bash
# gpu_pack.sh [DIR]: on a machine without a GPU, packs into DIR (build/gpu_pack) what gpu_quarter.sh needs on one that
# has a GPU and CUDA's libraries, but no MPI, no OpenBLAS, no cJSON, no cmocka and no network: the programs for GPUs of
# ARCH (sm_90) and for any x86-64 processor with AVX2, those libraries, and what the CPU computes. It takes five minutes
# on two cores and makes about 35 MB. Run it in the root of the tree; DIR and the tree then travel together.
set -euo pipefail
dir=${1-build/gpu_pack}
small="--layers 8 --hidden 64 --heads 8 --vocab 256 --seq 48 --micro-batch 4 --accumulate 2 --quiet"
long="--layers 2 --hidden 128 --vocab 256 --seq 300 --micro-batch 2 --accumulate 1 --steps 1 --quiet"

make PORTABLE=1 ARCH="${ARCH-sm_90}" cuda build/cuda/parity build/cpu/parity build/cpu/compare \
    build/cpu/02_mixed_precision build/cpu/08_fused_kernels build/cpu64/01_single_gpu build/cpu64/10_expert_parallel
rm -rf "$dir" && mkdir -p "$dir"/pack/{bin,cpu,lib/ucx} "$dir/reference"
cp build/cuda/[0-9][0-9]_* build/cuda/ladder build/cuda/parity "$dir/pack/bin"
cp build/cpu/parity build/cpu/compare "$dir/pack/cpu"
cp -L "$(command -v mpiexec.hydra)" "$(command -v hydra_pmi_proxy)" "$dir/pack/bin"
cp -L /usr/lib/"$(gcc -dumpmachine)"/ucx/*.so* "$dir/pack/lib/ucx" 2>/dev/null || true      # MPICH's UCX loads these
# Their libraries, but those that the other machine has: C's and C++'s own, CUDA's and NCCL
find "$dir/pack" -type f -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ "^/" {print $3}' | sort -u |
    grep -vE '/(lib(c|m|dl|rt|pthread|resolv|gcc_s|gomp|stdc\+\+)\.so|ld-|libcu|libnccl|libnv)' |
    while read -r library; do cp -nL "$library" "$dir/pack/lib"; done
find "$dir/pack" -type f -exec strip --strip-unneeded {} + 2>/dev/null || true

# What gradients must be, from one process in double; and the losses of small types, from the CPU in float
build/cpu64/01_single_gpu $small --steps 1 --dump-gradients "$dir/reference/01.safetensors"
build/cpu64/10_expert_parallel $small --steps 1 --span 12 --dump-gradients "$dir/reference/10.safetensors"
for heads in 2 1; do                    # of 64 and of 128
    build/cpu64/01_single_gpu $long --heads $heads --dump-gradients "$dir/reference/$((128 / heads)).safetensors"
done
for program in 02_mixed_precision 08_fused_kernels; do
    for dtype in fp32 bf16 fp16 fp8 "fp8 --fp8-scaling tile --seq 64"; do
        build/cpu/$program $small --hidden 128 --steps 3 --dtype $dtype \
            --metrics "$dir/reference/${program%%_*}_$(echo "$dtype" | tr -d ' -').csv"
    done
done
# The programs share most of their kernels, which a large window finds
tar c -C "$dir" pack | xz --lzma2=preset=6,dict=256MiB >"$dir/pack.tar.xz" && rm -r "$dir/pack"
cp tools/machine/gpu_quarter.sh "$dir"
du -sh "$dir"
