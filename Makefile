# ultrascale.c: "make run" trains, "make test" tests, "make help" lists the rest.

STAGE ?= 01
NP ?= 1
ARGS ?=
BUILD := build$(if $(SANITIZE),/sanitize)
STAGES := $(patsubst %/train.c,%,$(wildcard 0*/train.c))
PROGRAM = $(firstword $(filter $(STAGE)%,$(STAGES)))
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif
comma := ,

# MPI by asking mpicc; OpenBLAS's OpenMP build, even where another build is installed beside it.
MPI_SHOW := $(shell mpicc -show 2>/dev/null)
MPI_CFLAGS ?= $(filter -I% -D%,$(MPI_SHOW))
MPI_LIBS ?= $(filter -L% -l% -Wl%,$(MPI_SHOW))
BLAS_DIR := $(firstword $(patsubst %/libopenblas.so,%,$(wildcard /usr/lib/*/openblas-openmp/libopenblas.so)))
BLAS_CFLAGS ?= $(if $(BLAS_DIR),-I$(subst /lib/,/include/,$(BLAS_DIR)),$(shell pkg-config --cflags openblas 2>/dev/null))
BLAS_LIBS ?= $(if $(BLAS_DIR),-L$(BLAS_DIR) -Wl$(comma)-rpath$(comma)$(BLAS_DIR)) -lopenblas
LIBS := $(BLAS_LIBS) $(MPI_LIBS) -lcjson -lm

# -fno-math-errno, -fno-trapping-math: sqrt and rint become instructions. Sums keep their order, and NaN stays NaN.
CC := gcc
OPTIMIZE ?= $(if $(SANITIZE),-O1 -g -fsanitize=address$(comma)undefined -fno-sanitize-recover=all,-O3 -march=native $(if $(filter x86_64,$(shell uname -m)),-mprefer-vector-width=512))
WARNINGS := -Wall -Wextra -Wno-missing-field-initializers
TEXT := $(CURDIR)/build/text.txt
FLAGS := -std=c11 -D_GNU_SOURCE $(OPTIMIZE) -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=fast $(WARNINGS) \
	-MMD $(MPI_CFLAGS) $(BLAS_CFLAGS) -DDEFAULT_DATA='"$(TEXT)"' -DBUILD='"$(CURDIR)/$(BUILD)"' -DSOURCE='"$(CURDIR)"'

# A backend is a choice of files: the parts that are the same everywhere, and *_cpu.c with comm_mpi.c.
PARTS := $(filter-out %_cpu %_cuda %_mpi %_nccl,$(basename $(wildcard common/*.c)))
CPU_PARTS := $(PARTS) $(basename $(wildcard common/*_cpu.c common/*_mpi.c))
TESTS := $(patsubst tests/%.c,%,$(wildcard tests/test_*.c))

all: cpu cpu64		## what this machine can build
cpu: $(STAGES:%=$(BUILD)/cpu/%) $(BUILD)/cpu/ladder		## the programs in float, on the CPU
cpu64: $(STAGES:%=$(BUILD)/cpu64/%)	## the same in double, where layouts are compared

cuda:			## the programs on NVIDIA GPUs (there is no such backend yet)
	@echo "cuda: common/ has no CUDA backend yet; \"make cpu\" builds the programs for the CPU"; exit 1

# $(1): the backend's name, $(2): its flags
define backend
$(BUILD)/$(1)/obj/%.o: %.c
	@mkdir -p $$(@D)
	@echo "  CC  $$@"; $(CC) $(FLAGS) $(2) -c $$< -o $$@
$(BUILD)/$(1)/obj/libcommon.a: $(CPU_PARTS:%=$(BUILD)/$(1)/obj/%.o)
	@rm -f $$@; ar rcs $$@ $$^
$(STAGES:%=$(BUILD)/$(1)/%): $(BUILD)/$(1)/%: $(BUILD)/$(1)/obj/%/train.o $(BUILD)/$(1)/obj/libcommon.a | $(TEXT)
	@echo "  LD  $$@"; $(CC) $(FLAGS) $$^ $(LIBS) -o $$@
$(patsubst %,$(BUILD)/$(1)/%,$(TESTS) bench bench_mixed bench_ranks): $(BUILD)/$(1)/%: $(BUILD)/$(1)/obj/tests/%.o $(BUILD)/$(1)/obj/tests/harness.o $(BUILD)/$(1)/obj/tests/layouts.o \
		$(BUILD)/$(1)/obj/libcommon.a | $(TEXT)
	@echo "  LD  $$@"; $(CC) $(FLAGS) $$^ $(LIBS) -lcmocka -o $$@
endef
$(eval $(call backend,cpu,))
$(eval $(call backend,cpu64,-DREAL64))

# The matmul ladder: one program each for the CPU and for GPUs: ARCH=sm_90, or several.
LADDER := 08_fused_kernels/ladder
NVCC ?= $(shell command -v nvcc)
$(BUILD)/cpu/ladder: $(BUILD)/cpu/obj/$(LADDER)/ladder_cpu.o $(BUILD)/cpu/obj/libcommon.a
	@echo "  LD  $@"; $(CC) $(FLAGS) $^ $(LIBS) -o $@
$(BUILD)/cuda/ladder: $(LADDER)/ladder_cuda.cu $(LADDER)/ladder.h $(BUILD)/cpu/obj/common/error.o
	@test -n "$(NVCC)" || { echo "$@: nvcc is not in PATH; it comes with NVIDIA's CUDA toolkit"; exit 1; }
	@mkdir -p $(@D)
	@echo "  NVCC  $@"; $(NVCC) -std=c++17 -O3 -lineinfo -Xcompiler -Wall,-Wextra \
		$(foreach a,$(or $(ARCH:sm_%=%),75 80 90),'-gencode=arch=compute_$(a)$(comma)code=[sm_$(a)$(comma)compute_$(a)]') \
		$(filter-out %.h,$^) -lcublas -Xlinker -rpath=$(dir $(NVCC))../lib64 -o $@
.SECONDARY:
-include $(shell find build -name '*.d' 2>/dev/null)

# What the programs train on if no --data is given: this repository's own text.
$(TEXT): $(wildcard README.md */README.md */*.h */*.c)
	@mkdir -p $(@D)
	@cat $^ > $@

run: deps		## train about a minute: STAGE=01 NP=1 ARGS="--preset 10m"
	@$(MAKE) --no-print-directory cpu
	@test -n "$(PROGRAM)" || { echo "STAGE=$(STAGE) is none of: $(STAGES)"; exit 2; }
	$(if $(filter-out 1,$(NP)),mpiexec -n $(NP)) $(BUILD)/cpu/$(PROGRAM) --steps 300 --eval-every 100 $(if $(filter 01 02 08,$(STAGE)),--sample 300) $(ARGS)

test: deps		## the tests, under five minutes; SANITIZE=1: under sanitizers
	@$(MAKE) --no-print-directory run-tests

test-full: deps		## the whole matrix
	@$(MAKE) --no-print-directory run-tests FULL=1

run-tests: cpu cpu64 $(TESTS:%=$(BUILD)/cpu64/%) $(BUILD)/cpu/test_operators $(BUILD)/cpu/test_formats
	@tests/changes.sh --check
	@tests/run.sh $(if $(FULL),--full) $(TESTS:%=$(BUILD)/cpu64/%) $(BUILD)/cpu/test_operators $(BUILD)/cpu/test_formats

BENCH = $(if $(filter 01,$(STAGE)),bench,$(if $(filter 02,$(STAGE)),bench_mixed,bench_ranks))
bench: deps		## speed: 01 as ratios to this machine's sgemm; STAGE=02: types; STAGE=03: what ranks cost
	@$(MAKE) --no-print-directory cpu $(BUILD)/cpu/$(BENCH)
	@$(CURDIR)/$(BUILD)/cpu/$(BENCH)

ladder: deps		## matrix multiplication from naive to the library, rung by rung: on a GPU if one answers
	@$(MAKE) --no-print-directory $(LADDER_PROGRAM)
	@$(LADDER_PROGRAM) $(ARGS)
LADDER_PROGRAM = $(BUILD)/$(if $(and $(NVCC),$(shell nvidia-smi -L 2>/dev/null | grep GPU)),cuda,cpu)/ladder

figures: deps		## draws the figures of the READMEs anew, from runs made now
	@$(MAKE) --no-print-directory cpu
	@tests/figures.sh

fuzz:			## feeds hostile files to the checkpoint reader for a minute; FUZZ_SECONDS=60
	@mkdir -p $(BUILD)/fuzz/corpus
	clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
		tests/fuzz_safetensors.c common/safetensors.c -lcjson -o $(BUILD)/fuzz/fuzz_safetensors
	cd $(BUILD)/fuzz && ./fuzz_safetensors -max_total_time=$(or $(FUZZ_SECONDS),60) -max_len=1024 -use_value_profile=1 \
		-timeout=10 corpus $(CURDIR)/tests/fuzz_seeds

lint:			## clang-tidy and cppcheck, whichever is here
	@tests/lint.sh $(MPI_CFLAGS) $(BLAS_CFLAGS)

format:			## clang-format, on the lines changed since the last commit
	git clang-format --extensions c,h,cu -- common 0* tests

deps:			## install what is missing, from the distribution's packages
	@tests/deps.sh

diff:			## what a stage changes: STAGE=05
	@tests/changes.sh --diff $(PROGRAM)

changes:		## writes the tables of what changes into the READMEs
	@tests/changes.sh --update

help:
	@awk -F':.*## *' '/^[a-z0-9-]+:.*##/ {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

clean:			## remove build/
	rm -rf build

.PHONY: all cpu cpu64 cuda run test test-full run-tests bench ladder figures fuzz lint format deps diff changes help clean
