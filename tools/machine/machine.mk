# What this machine has: MPI, OpenBLAS, CUDA, NCCL, GPUs. Each variable can be set on make's command line instead.

# MPI as mpicc reports it, and what its mpiexec must be told. OpenBLAS in its OpenMP build, even if another build is
# installed as well. Libraries in a prefix (LIBRARY_PATH, or a conda environment) are found by rpath at run time.
include tools/machine/open_mpi.sh
MPI_SHOW := $(shell mpicc -show 2>/dev/null)
MPI_CFLAGS ?= $(filter -I% -D%,$(MPI_SHOW))
MPI_LIBS ?= $(filter -L% -l% -Wl%,$(MPI_SHOW))
BLAS_DIR := $(patsubst %/libopenblas.so,%,$(firstword $(wildcard /usr/lib/*/openblas-openmp/libopenblas.so)))
BLAS_CFLAGS ?= $(or $(BLAS_DIR:/usr/lib/%=-I/usr/include/%),$(shell pkg-config --cflags openblas 2>/dev/null))
BLAS_LIBS ?= $(foreach d,$(BLAS_DIR),-L$(d) -Wl,-rpath,$(d)) -lopenblas
CONDA := $(patsubst %/include/cjson/cJSON.h,%,$(wildcard $(CONDA_PREFIX)/include/cjson/cJSON.h))
PREFIXES := $(foreach d,$(filter-out %/stubs,$(subst :, ,$(LIBRARY_PATH)) $(CONDA:%=%/lib)),-L$(d) -Wl,-rpath,$(d))
LIBS = $(BLAS_LIBS) $(MPI_LIBS) -lcjson -lm $(PREFIXES)

# CUDA as nvcc reports it: its link directories, without the stubs of the driver library. ARCH=sm_90 sets the GPUs;
# the default is the GPUs of this machine, or without one, three generations. Each includes PTX for later GPUs. Before
# 12.4 nvcc takes no code=[sm_90,compute_90] from an options file. --threads 0 compiles a file for all GPUs at once. -O1
# is for the host's code, which only queues kernels.
NVCC ?= $(shell command -v nvcc 2>/dev/null)
NO_NVCC := $(shell tools/machine/gpus.sh --nvcc $(NVCC))
ARCH ?= $(or $(filter sm_% compute_%,$(shell tools/machine/gpus.sh $(NVCC))),sm_75 sm_80 sm_90)
gencode = $(foreach code,$(sort $(1) $(1:sm_%=compute_%)),-gencode=arch=$(1:sm_%=compute_%),code=$(code))
NVCC_FLAGS = -std=c++17 -O1 -lineinfo -MMD -MP --threads 0 $(addprefix -Xcompiler=,-fopenmp $(WARNINGS)) \
	$(foreach a,$(ARCH),$(call gencode,$(a)))
CUDA_DIRS = $(filter-out %/stubs,$(subst ",,$(shell $(NVCC) --dryrun -x cu /dev/null 2>&1 | sed -n s/.*LIBRARIES=//p)))
CUDA_LIBS = $(foreach d,$(CUDA_DIRS),$(d) $(d:-L%=-Wl,-rpath,%)) -lcublas -lcublasLt -lcudart -lstdc++ -ldl

# NCCL from 2.17 on, if nccl.h is found: beside the CUDA headers, in the system, or in NCCL_HOME. A distribution's CUDA
# headers are in the system: -isystem /usr/include would hide them from C++'s #include_next. Up to 2.23 nccl.h declares
# ncclBfloat16 only with the macro, which CUDA defines in C++.
CUDA_HOME ?= $(or $(patsubst %/bin/nvcc,%,$(realpath $(NVCC))),/usr/local/cuda)
CUDA_INCLUDE := $(patsubst %,-isystem %/include,$(filter-out /usr,$(CUDA_HOME)))
NCCL_CFLAGS ?= $(NCCL_HOME:%=-I%/include) $(CUDA_INCLUDE)
override NCCL_CFLAGS += -D__CUDA_BF16_TYPES_EXIST__
NCCL := $(shell echo 'ncclConfig_t c = {.maxCTAs = 1}; ncclDataType_t t = ncclBfloat16;' | $(CC) $(NCCL_CFLAGS) \
	-include nccl.h -xc -fsyntax-only - 2>/dev/null && echo yes)
NCCL_LIBS ?= $(if $(NCCL),$(foreach d,$(NCCL_HOME),-L$(d)/lib -Wl,-rpath,$(d)/lib) -l:libnccl.so.2)

# The GPUs of this machine, or why they cannot be used; looked for only by these targets.
GPUS := $(if $(filter run sweep ladder bench-torch test-cuda bench-cuda gpu-day,$(MAKECMDGOALS)),$(shell tools/machine/gpus.sh $(NVCC)))
BACKEND := $(if $(SIMULATE),simulated,$(if $(filter sm_% compute_%,$(GPUS)),cuda,cpu))
needs_gpu = @$(if $(filter cpu,$(BACKEND)),echo '$@: $(or $(GPUS),no GPU is found); $(1)'; exit 1)

# What the checks start and compare with is built before their time begins.
MINUTES := 30
OF_GPU_DAY = $(patsubst %,$(BUILD)/$(BACKEND)/%,$(PROGRAMS) ladder parity) \
	$(patsubst %,$(BUILD)/cpu/%,parity compare bench_cuda 02_mixed_precision 08_fused_kernels) \
	$(patsubst %,$(BUILD)/cpu64/%,01_single_gpu 10_expert_parallel 12_llama)
gpu-day: deps		## run the first checks on this machine's GPUs, in the time that there is: MINUTES=30 SECTIONS="prove speed"
	$(call needs_gpu,SIMULATE=1 tries it without)
	@case "$(MINUTES)" in '' | 0* | *[!0-9]*) \
		echo 'MINUTES: expected a whole number from 1 on, got "$(MINUTES)"'; exit 2 ;; esac
	@$(MAKE) -s --no-print-directory $(OF_GPU_DAY)
	@tools/machine/gpu_references.sh $(BUILD)/gpu_day/reference $(BUILD)
	@PACK=$(CURDIR)/$(BUILD)/gpu_day SIMULATE=$(SIMULATE) tools/machine/gpu_day.sh $$((60 * $(MINUTES))) $(SECTIONS)
.PHONY: gpu-day
