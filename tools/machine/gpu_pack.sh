#!/usr/bin/env bash
# gpu_pack.sh [DIR]: on a machine without a GPU, packs into DIR (build/gpu_pack) what gpu_day.sh needs on one that has a
# GPU and CUDA's libraries, but no MPI, no OpenBLAS, no cJSON and no network: the programs for GPUs of ARCH (sm_90) and
# for any x86-64 processor with AVX2, those libraries, and what the CPU computes. It takes five minutes on two cores
# and makes 42 MB. Run it in the root of the tree; DIR and the tree then travel together. SIMULATE=1 packs the programs
# for the simulated GPU, which tries all this without a GPU.
set -euo pipefail
dir=${1-build/gpu_pack} build=build/portable
backend=${SIMULATE:+simulated} backend=${backend:-cuda}
make="make PORTABLE=1 BUILD=$build ARCH=${ARCH-sm_90}"

$make $(for p in [0-9][0-9]_*/ ladder parity; do echo "$build/$backend/${p%/}"; done) \
    $build/cpu/{parity,compare,bench_cuda,02_mixed_precision,08_fused_kernels} \
    $build/cpu64/{01_single_gpu,10_expert_parallel,12_llama}
rm -rf "$dir" && mkdir -p "$dir"/pack/{bin,cpu,lib/ucx}
cp $build/$backend/[0-9][0-9]_* $build/$backend/{ladder,parity} "$dir/pack/bin"
cp $build/cpu/{parity,compare,bench_cuda} "$dir/pack/cpu"
cp -L "$(command -v mpiexec.hydra)" "$(command -v hydra_pmi_proxy)" "$dir/pack/bin"
cp -L /usr/lib/"$(gcc -dumpmachine)"/ucx/*.so* "$dir/pack/lib/ucx" 2>/dev/null || true      # MPICH's UCX loads these
# Their libraries, but those that the other machine has: C's and C++'s own, CUDA's and NCCL
find "$dir/pack" -type f -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ "^/" {print $3}' | sort -u |
    grep -vE '/(lib(c|m|dl|rt|pthread|resolv|gcc_s|gomp|stdc\+\+)\.so|ld-|libcu|libnccl|libnv)' |
    while read -r library; do cp -nL "$library" "$dir/pack/lib"; done
find "$dir/pack" -type f -exec strip --strip-unneeded {} + 2>/dev/null || true
tools/machine/gpu_references.sh "$dir/reference" $build
# The programs share most of their kernels, which a large window finds
tar c -C "$dir" pack | xz --lzma2=preset=6,dict=256MiB >"$dir/pack.tar.xz" && rm -r "$dir/pack"
du -sh "$dir"
