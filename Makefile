# ultrascale.c: "make run" trains, "make test" tests, "make help" lists the rest.

$(if $(word 2,$(CURDIR))$(findstring %,$(CURDIR)),$(error this directory's path has a space or a %, which make reads otherwise: $(CURDIR)))
# Objects know this directory's path. A test that runs in a copy of it, with links to what is built here, says ROOT=here.
ROOT := $(CURDIR)
STAGE ?= 01
NP ?= 1
ARGS ?=
BUILD := build$(if $(SANITIZE),/sanitize)
STAGES := $(patsubst %/train.c,%,$(wildcard 0*/train.c))
MATCHES = $(or $(filter $(STAGE),$(STAGES)),$(filter $(STAGE)%,$(STAGES)))
PROGRAM = $(if $(word 2,$(MATCHES)),,$(MATCHES))
ifneq ($(filter clean,$(MAKECMDGOALS)),)
.NOTPARALLEL:			# "make clean cpu": one after the other
else ifeq ($(MAKELEVEL),0)
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
TEXT := $(ROOT)/build/text.txt
FLAGS := -std=c11 -D_GNU_SOURCE $(OPTIMIZE) -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=fast $(WARNINGS) \
	$(if $(findstring clang,$(CC)),-Wno-pass-failed) -MMD -MP $(MPI_CFLAGS) $(BLAS_CFLAGS) -DDEFAULT_DATA='"$(TEXT)"' -DBUILD='"$(ROOT)/$(BUILD)"' -DSOURCE='"$(ROOT)"'

# CUDA by asking nvcc; its link directories, without the stubs of the driver's library. GPUs: ARCH=sm_90, or several;
# otherwise this machine's own, or, where none answers, three generations, with code for later ones to compile. (eval:
# asked when needed first, and once.)
NVCC ?= $(shell command -v nvcc 2>/dev/null)
NVIDIA_GPUS = $(eval NVIDIA_GPUS := $(shell nvidia-smi -L 2>/dev/null))$(NVIDIA_GPUS)
ARCH ?= $(eval ARCH := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null \
	| sed -n 's/^\([0-9]*\)\.\([0-9]*\)$$/sm_\1\2/p' | sort -u))$(ARCH)
GENCODE = $(foreach a,$(patsubst sm_%,%,$(or $(ARCH),sm_75 sm_80 sm_90)),'-gencode=arch=compute_$(a),code=[sm_$(a)$(if $(ARCH)$(filter 90,$(a)),$(comma)compute_$(a))]')
NVCC_FLAGS := -std=c++17 -O3 -lineinfo -MMD -MP -Xcompiler -fopenmp,$(subst $(empty) ,$(comma),$(WARNINGS))
CUDA_DIRS = $(filter-out %/stubs,$(subst ",,$(shell $(NVCC) --dryrun -x cu /dev/null 2>&1 | sed -n 's/.* LIBRARIES= *//p')))
CUDA_LIBS = $(CUDA_DIRS) $(CUDA_DIRS:-L%=-Wl$(comma)-rpath$(comma)%) -lcublas -lcublasLt -lcudart -lstdc++ -ldl

# NCCL, if nccl.h is found: with CUDA's headers, in the system's, or in NCCL_HOME.
CUDA_HOME ?= $(or $(patsubst %/bin/nvcc,%,$(realpath $(NVCC))),/usr/local/cuda)
NCCL_CFLAGS ?= $(NCCL_HOME:%=-I%/include) -isystem $(CUDA_HOME)/include
NCCL := $(shell printf '\043include <nccl.h>\n' | $(CC) $(NCCL_CFLAGS) -x c -fsyntax-only - 2>/dev/null && echo yes)
NCCL_LIBS ?= $(if $(NCCL),$(NCCL_HOME:%=-L%/lib -Wl$(comma)-rpath$(comma)%/lib) -l:libnccl.so.2)

# A backend is a choice of files: the parts that are the same everywhere, cpu/ or cuda/, and NCCL or none.
PARTS := $(filter-out %/nccl %/no_nccl,$(basename $(wildcard common/*.c common/comm/*.c common/checkpoint/*.c)))
CPU_PARTS := $(PARTS) $(basename $(wildcard common/cpu/*.c)) common/comm/no_nccl
CUDA_PARTS := $(PARTS) $(basename $(wildcard common/cuda/*.cu)) common/comm/$(if $(NCCL),nccl,no_nccl)
# A program is all .c files of its directory, but for a backend's own.
PROGRAM_OBJECTS = $(addsuffix .o,$(basename $(filter-out %_cpu.c,$(wildcard $(1)/*.c))))
FUSED_cpu := 08_fused_kernels/fused 08_fused_kernels/fused_cpu
FUSED_cuda := 08_fused_kernels/fused $(basename $(wildcard 08_fused_kernels/fused_cuda/*.cu))
TESTS := $(filter-out test_cuda,$(basename $(notdir $(wildcard tests/*/test_*.c))))

all: cpu cpu64 $(if $(NVCC),cuda)		## what this machine can build
cpu: $(STAGES:%=$(BUILD)/cpu/%) $(BUILD)/cpu/ladder		## the programs in float, on the CPU
cpu64: $(STAGES:%=$(BUILD)/cpu64/%)	## the same in double, where layouts are compared
cuda: $(if $(NVCC),$(STAGES:%=$(BUILD)/cuda/%) $(BUILD)/cuda/ladder,no-nvcc)	## the programs on NVIDIA GPUs: ARCH=sm_90

no-nvcc:
	@echo "cuda: nvcc is not in PATH; it comes with NVIDIA's CUDA toolkit. \"make cpu\" builds the programs for the CPU"; exit 1

# $(1): the backend's name, $(2): its flags, $(3): its parts, $(4): its libraries, $(5): whose fused operators 08 has.
# Its file `flags` has what objects were made with (-march=native is this machine's), and changes if that does.
.SECONDEXPANSION:
define backend
$(BUILD)/$(1)/flags: always
	@mkdir -p $$(@D)
	@{ echo "$(subst ",\",$(CC) $(FLAGS) $(2)) $(3)"; $(CC) $(OPTIMIZE) -Q --help=target 2>/dev/null | grep -m1 march=; } >$$@.new; \
		if cmp -s $$@.new $$@; then rm $$@.new; else mv $$@.new $$@; fi
$(BUILD)/$(1)/obj/%.o: %.c $(BUILD)/$(1)/flags
	@mkdir -p $$(@D)
	@echo "  CC  $$@"; $(CC) $(FLAGS) $(2) -c $$< -o $$@
$(BUILD)/$(1)/obj/libcommon.a: $(3:%=$(BUILD)/$(1)/obj/%.o) $(BUILD)/$(1)/flags
	@rm -f $$@; ar qcs $$@ $$(filter %.o,$$^)
$(STAGES:%=$(BUILD)/$(1)/%): $(BUILD)/$(1)/%: $$$$(addprefix $(BUILD)/$(1)/obj/,$$$$(call PROGRAM_OBJECTS,$$$$*)) $(BUILD)/$(1)/obj/libcommon.a | $(TEXT)
	@echo "  LD  $$@"; $(CC) $(FLAGS) $$^ $(LIBS) $(4) -o $$@
$(patsubst %,$(BUILD)/$(1)/%,$(TESTS) bench bench_variants bench_ranks sweep test_cuda parity bench_cuda diagnose verify compare): $(BUILD)/$(1)/%: $(BUILD)/$(1)/obj/$$$$(basename $$$$(wildcard tests/*/$$$$*.c)).o $(BUILD)/$(1)/obj/tests/harness.o $(BUILD)/$(1)/obj/tests/layouts.o $(BUILD)/$(1)/obj/tests/tensors.o \
		$(BUILD)/$(1)/obj/libcommon.a | $(TEXT)
	@echo "  LD  $$@"; $(CC) $(FLAGS) $$^ $(LIBS) $(4) -lcmocka -o $$@
$(patsubst %,$(BUILD)/$(1)/%,08_fused_kernels test_fused parity bench_cuda): $(FUSED_$(5):%=$(BUILD)/$(1)/obj/%.o)
endef
$(eval $(call backend,cpu,,$(CPU_PARTS),,cpu))
$(eval $(call backend,cpu64,-DREAL64,$(CPU_PARTS),,cpu))
$(eval $(call backend,cuda,,$(CUDA_PARTS),$$(CUDA_LIBS) $$(NCCL_LIBS),cuda))
$(BUILD)/cuda/obj/%.o: %.cu $(BUILD)/cuda/arch
	@mkdir -p $(@D)
	@echo "  NVCC  $@"; $(NVCC) $(NVCC_FLAGS) $(GENCODE) -c $< -o $@
$(BUILD)/cuda/arch: always		# what objects were built for
	@mkdir -p $(@D)
	@echo "$(GENCODE)" | cmp -s - $@ || echo "$(GENCODE)" > $@

# The cuda backend on a GPU emulated by the CPU (tests/fakes/emulator.h), where CUDA's headers are found. Not under sanitizers,
# which don't know its fibers.
CUDA_HEADERS := $(if $(SANITIZE),,$(shell printf '\043include <cublasLt.h>\n\043include <cuda_fp8.h>\n' | $(CXX) -isystem $(CUDA_HOME)/include -x c++ -fsyntax-only - 2>/dev/null && echo yes))
EMULATED := $(patsubst %,$(BUILD)/emulated/%,$(STAGES) parity test_cuda)
EMULATED_FLAGS = -std=c++17 $(filter-out -std=%,$(FLAGS)) -isystem $(CUDA_HOME)/include -fno-extern-tls-init -Wno-unknown-pragmas -Wno-sign-compare -Wno-extra
$(eval $(call backend,emulated,,$(filter-out %nccl,$(CUDA_PARTS)) common/comm/no_nccl,-lstdc++ -ldl,cuda))
EMULATOR := $(BUILD)/emulated/obj/tests/fakes/emulator.o $(BUILD)/emulated/obj/tests/fakes/emulator_check.o
# calls before each access to memory, which end in emulator_check.cc; -g1 for lines' numbers
KERNEL_CHECKS := -g1 -fsanitize=thread,bounds,alignment --param tsan-instrument-func-entry-exit=0
$(BUILD)/emulated/obj/common/cuda/device.o: KERNEL_CHECKS :=		# has no kernels
$(EMULATED): $(EMULATOR)
$(BUILD)/emulated/obj/%.o: %.cu tests/fakes/emulator.h $(BUILD)/emulated/flags
	@mkdir -p $(@D)
	@echo "  CXX $@"; $(CXX) $(EMULATED_FLAGS) $(KERNEL_CHECKS) -include tests/fakes/emulator.h -x c++ -c $< -o $@
$(BUILD)/emulated/obj/%.o: %.cc $(BUILD)/emulated/flags
	@mkdir -p $(@D)
	@echo "  CXX $@"; $(CXX) $(EMULATED_FLAGS) -c $< -o $@

$(BUILD)/emulated/emulator_mistakes: $(BUILD)/emulated/obj/tests/fakes/emulator_mistakes.o $(EMULATOR)
	@echo "  LD  $@"; $(CC) $(FLAGS) $^ $(LIBS) -lstdc++ -o $@

# The matmul ladder: one program each for the CPU and for GPUs.
LADDER := 08_fused_kernels/ladder
$(BUILD)/cpu/ladder: $(BUILD)/cpu/obj/$(LADDER)/ladder_cpu.o $(BUILD)/cpu/obj/libcommon.a
	@echo "  LD  $@"; $(CC) $(FLAGS) $^ $(LIBS) -o $@
$(BUILD)/emulated/obj/$(LADDER)/ladder_cuda.o: $(LADDER)/ladder_cuda.cu tests/fakes/emulator.h $(BUILD)/emulated/flags
	@mkdir -p $(@D)
	@echo "  CXX $@"; sed -E 's/(\w+)<<<(.*)>>>\(/emulated_start({\2}, \1, /' $< | \
		$(CXX) $(EMULATED_FLAGS) $(KERNEL_CHECKS) -include tests/fakes/emulator.h -I$(LADDER) -x c++ -c - -o $@
$(BUILD)/emulated/ladder: $(BUILD)/emulated/obj/$(LADDER)/ladder_cuda.o $(EMULATOR) $(BUILD)/emulated/obj/common/error.o
	@echo "  LD  $@"; $(CC) $(FLAGS) $^ $(LIBS) -lstdc++ -o $@
$(BUILD)/cuda/ladder: $(BUILD)/cuda/obj/$(LADDER)/ladder_cuda.o $(BUILD)/cuda/obj/common/error.o
	@echo "  LD  $@"; $(CC) $(FLAGS) $^ $(CUDA_LIBS) -lm -o $@
.SECONDARY:
.DELETE_ON_ERROR:
-include $(shell find build -name '*.d' 2>/dev/null)

# test_comm twice more: with a device made for it in place of libcommon.a's, and with comm/nccl.c on an NCCL made for it
# (so that is compiled for the CPU build too).
FAKES := test_comm_staged $(if $(NCCL),test_comm_nccl)
$(BUILD)/cpu64/test_comm_nccl: $(BUILD)/cpu64/obj/tests/fakes/fake_nccl.o $(BUILD)/cpu64/obj/common/comm/nccl.o
$(FAKES:%=$(BUILD)/cpu64/%): $(patsubst %,$(BUILD)/cpu64/obj/%,tests/common/test_comm.o tests/harness.o tests/fakes/fake_device.o libcommon.a)
	@echo "  LD  $@"; $(CC) $(FLAGS) $(filter %.o,$^) $(filter %.a,$^) $(LIBS) -lcmocka -o $@
$(BUILD)/%/nccl.o $(BUILD)/%/fake_nccl.o: FLAGS += $(NCCL_CFLAGS)

# What the programs train on if no --data is given: this repository's own text. It is made once, so that who edits a
# program can compare its losses with those from before; "make clean", and it is made anew.
$(TEXT):
	@mkdir -p $(@D)
	@cat $(wildcard README.md */README.md */*.h */*.c */*/*.h */*/*.c) > $@

run sweep bench-torch: BACKEND = $(if $(NVIDIA_GPUS),$(if $(NVCC),cuda,cpu),cpu)
run: known-stage deps		## train about a minute, on a GPU if one answers: STAGE=01 NP=1 ARGS="--preset 10m"
	@$(if $(NVIDIA_GPUS),$(if $(NVCC),,echo "there is a GPU, but no nvcc in PATH to build for it: this runs on the CPU"))
	@case "$(NP)" in '' | 0* | *[!0-9]*) echo 'NP="$(NP)" is not a number of ranks, from 1 on'; exit 2 ;; esac
	@$(MAKE) --no-print-directory $(BACKEND)
	$(if $(filter-out 1,$(NP)),mpiexec -n $(NP)) $(BUILD)/$(BACKEND)/$(PROGRAM) --steps 300 --eval-every 100 $(if $(filter 01 02 08,$(NUMBER)),--sample 300) $(ARGS)

test: deps		## the tests, under five minutes; SANITIZE=1: under sanitizers
	@$(MAKE) --no-print-directory run-tests

test-full: deps		## the whole matrix
	@$(MAKE) --no-print-directory run-tests FULL=1

TEST_PROGRAMS := $(patsubst %,$(BUILD)/cpu64/%,$(TESTS) $(FAKES)) $(BUILD)/cpu/test_operators $(BUILD)/cpu/test_formats \
	$(if $(CUDA_HEADERS),$(BUILD)/emulated/test_cuda)
run-tests: cpu cpu64 $(TEST_PROGRAMS) $(BUILD)/cpu/sweep $(BUILD)/cpu/compare $(BUILD)/cpu64/verify $(if $(CUDA_HEADERS),$(EMULATED) $(BUILD)/emulated/ladder $(BUILD)/emulated/emulator_mistakes $(BUILD)/cpu/parity)
	@tests/workshop/changes.sh --check
	@$(if $(CUDA_HEADERS)$(SANITIZE),,echo "no test of GPUs' kernels on an emulated one: CUDA's headers were not found (CUDA_HOME=DIR says where)")
	@$(if $(NCCL),,echo "no test of NCCL's side: nccl.h was not found (NCCL_HOME=DIR says where)")
	@tests/run.sh $(if $(FULL),--full) $(TEST_PROGRAMS)

test-cuda: deps		## operators and gradients on a GPU against the CPU's
	@$(MAKE) --no-print-directory cuda cpu $(if $(NVCC),$(BUILD)/cuda/test_cuda $(BUILD)/cuda/parity) $(BUILD)/cpu/parity
	@$(BUILD)/cuda/test_cuda

bench-cuda: deps	## speed on a GPU: tokens/s, MFU, operators; memory's bandwidth
	@$(MAKE) --no-print-directory cuda $(if $(NVCC),$(BUILD)/cuda/bench_cuda)
	@$(BUILD)/cuda/bench_cuda

PYTHON ?= python3
bench-torch: deps	## the same model in PyTorch, in turns with ours, on a GPU if one answers: PYTHON=a python with torch
	@$(PYTHON) -c "import torch, numpy, safetensors" 2>/dev/null || { echo "$(PYTHON) has no torch, numpy or safetensors;" \
		"python3 -m venv DIR && DIR/bin/pip install torch numpy safetensors, then make bench-torch PYTHON=DIR/bin/python"; exit 1; }
	@$(MAKE) --no-print-directory $(BACKEND)
	@$(PYTHON) tests/bench/bench_torch.py $(BACKEND)

BENCH = $(if $(filter 01,$(NUMBER)),bench,$(if $(filter 02 08,$(NUMBER)),bench_variants,bench_ranks))
bench: known-stage deps		## speed: 01 as ratios to this machine's sgemm; STAGE=02: types; 03: what ranks cost; 08: fusions
	@$(MAKE) --no-print-directory cpu $(BUILD)/cpu/$(BENCH)
	@$(CURDIR)/$(BUILD)/cpu/$(BENCH) $(filter 02 08,$(NUMBER))

sweep: known-stage deps		## how a stage scales, as table and figure: STAGE=05 NP="1 2 4 8" ARGS="--sequence-parallel"
	@$(MAKE) -s --no-print-directory $(BACKEND) $(BUILD)/cpu/sweep
	@$(BUILD)/cpu/sweep $(BACKEND) $(PROGRAM) "$(if $(filter file,$(origin NP)),1 2 4 8,$(NP))" $(ARGS)

ladder: deps		## matrix multiplication from naive to the library, rung by rung: on a GPU if one answers
	@$(MAKE) --no-print-directory $(LADDER_PROGRAM)
	@$(LADDER_PROGRAM) $(ARGS)
LADDER_PROGRAM = $(BUILD)/$(if $(and $(NVCC),$(NVIDIA_GPUS)),cuda,cpu)/ladder

figures: deps		## draws the figures of the READMEs anew, from runs made now
	@$(MAKE) --no-print-directory cpu
	@tests/workshop/figures.sh

fuzz:			## feeds hostile files to the checkpoint reader for a minute; FUZZ_SECONDS=60
	@mkdir -p $(BUILD)/fuzz/corpus
	clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
		tests/common/fuzz_safetensors.c common/safetensors.c -lcjson -o $(BUILD)/fuzz/fuzz_safetensors
	cd $(BUILD)/fuzz && ./fuzz_safetensors -max_total_time=$(or $(FUZZ_SECONDS),60) -max_len=1024 -use_value_profile=1 \
		-timeout=10 corpus $(CURDIR)/tests/common/fuzz_seeds

lint:			## clang-tidy over the CPU sources
	@tests/lint.sh $(MPI_CFLAGS) $(BLAS_CFLAGS) $(NCCL_CFLAGS)

format:			## clang-format, on the lines changed since the last commit
	git clang-format --extensions c,h,cu,cuh,cc -- common 0* tests

# A reader's train.c, in the tree or in an exercise's copy, as a program in double. -O1: it is compiled more often than run.
NUMBER = $(firstword $(subst _, ,$(PROGRAM)))
EXERCISE = build/exercise/$(NUMBER).$(N)
EDITED = $(if $(N),$(EXERCISE),$(PROGRAM))
known-stage:
	@test -n "$(PROGRAM)" || { echo "STAGE=$(STAGE) is $(if $(MATCHES),the beginning of several names; write one of them whole: $(MATCHES),none of: $(STAGES))"; exit 2; }

exercise: known-stage	## a copy of a stage with a part taken out, to put it there again: STAGE=05 N=1; without N: a list
	@$(if $(N),mkdir -p build/exercise; tests/workshop/exercise.sh $(PROGRAM) "$(N)" "$(EXERCISE)",tests/workshop/exercise.sh $(PROGRAM))

compare: deps		## two --dump-gradients files, tensor by tensor: A=one.safetensors B=two.safetensors TOLERANCE=1e-4 HEADS=12
	@$(MAKE) --no-print-directory $(BUILD)/cpu/compare >/dev/null
	@$(BUILD)/cpu/compare "$(A)" "$(B)" "$(TOLERANCE)" "$(HEADS)"

verify: known-stage deps	## an edited train.c, or your own 09_name, against 01, and what is wrong with it: STAGE=05 NP=4 ARGS="..."; N=1: exercise 1
	@test -d $(EDITED) || { echo "there is no $(EDITED): make exercise STAGE=$(NUMBER) N=$(N)"; exit 2; }
	@$(MAKE) --no-print-directory $(BUILD)/cpu64/01_single_gpu $(BUILD)/cpu64/verify $(BUILD)/cpu64/diagnose >/dev/null
	@mkdir -p $(BUILD)/verify
	@$(CC) $(filter-out -MMD -MP,$(FLAGS)) -O1 $(if $(N),-Wno-unused) -DREAL64 $(EDITED)/*.c \
		$(BUILD)/cpu64/obj/libcommon.a $(LIBS) -o $(BUILD)/verify/$(notdir $(EDITED))
	@$(if $(filter 01_%,$(EDITED)),$(MAKE) --no-print-directory $(BUILD)/cpu64/test_gradients >/dev/null && \
		echo "01's gradients against differences of its losses:" && $(BUILD)/cpu64/test_gradients)
	@$(BUILD)/cpu64/verify $(PROGRAM) $(BUILD)/verify/$(notdir $(EDITED)) "$(if $(filter file,$(origin NP)),,$(NP))" $(ARGS)

deps:			## install what is missing, from the distribution's packages
	@tests/workshop/deps.sh

check-machine:	## what this machine has, what runs on it and how, and what to install for more
	@CC='$(CC)' OPTIMIZE='$(OPTIMIZE)' MPI_CFLAGS='$(MPI_CFLAGS)' MPI_LIBS='$(MPI_LIBS)' BLAS_CFLAGS='$(BLAS_CFLAGS)' \
		BLAS_LIBS='$(BLAS_LIBS)' NVCC='$(NVCC)' NCCL='$(NCCL)' NCCL_CFLAGS='$(NCCL_CFLAGS)' tests/workshop/check_machine.sh

diff: known-stage	## what a stage changes: STAGE=05
	@tests/workshop/changes.sh --diff $(PROGRAM)

changes:		## writes the tables of what changes into the READMEs
	@tests/workshop/changes.sh --update

help:
	@awk -F':.*## *' '/^[a-z0-9-]+:.*##/ {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

clean:			## remove build/
	rm -rf build

.PHONY: all always known-stage exercise compare verify cpu cpu64 cuda no-nvcc run test test-full run-tests test-cuda bench-cuda bench-torch bench sweep ladder figures fuzz lint format deps check-machine diff changes help clean
