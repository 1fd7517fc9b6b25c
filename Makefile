# ultrascale.c: "make run" trains, "make test" tests, "make help" lists the rest. This file builds the programs.
# tools/machine/machine.mk finds MPI, OpenBLAS, CUDA and NCCL; tests/tests.mk builds the tests; the other tools/*/*.mk
# build the planner, the simulated GPU, and what learners and instructors use.

$(if $(word 2,$(CURDIR))$(findstring %,$(CURDIR)),$(error the path of this directory has a space or a %: $(CURDIR)))
# Objects contain the path of this directory. A test that runs in a copy, with links to this build, sets ROOT.
ROOT := $(CURDIR)
BUILD := build$(if $(SANITIZE),/sanitize)
ifneq ($(filter clean,$(MAKECMDGOALS)),)
.NOTPARALLEL:			# "make clean cpu": one after the other
else ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

# GNU's OpenMP lets a waiting thread spin 300,000 turns, some milliseconds. If other programs want the core, it keeps
# the thread that it waits for from running: with two busy programs on two cores a step took 1,016 ms, and 260 ms with
# 3,000 turns.
export GOMP_SPINCOUNT ?= 3000

# STAGE is the name of a program, its beginning, or its number: 4 is 04.
STAGE ?= 01
NP ?= 1
STAGES := $(patsubst %/train.c,%,$(sort $(wildcard [0-9][0-9]_*/train.c)))
# 00 trains nothing.
PROGRAMS := 00_collectives $(STAGES)
MATCHES := $(or $(filter $(STAGE) 0$(STAGE)_%,$(PROGRAMS)),$(filter $(STAGE)%,$(PROGRAMS)))
PROGRAM := $(if $(word 2,$(MATCHES)),,$(MATCHES))
NUMBER := $(firstword $(subst _, ,$(PROGRAM)))

include tools/machine/machine.mk

# -fno-math-errno, -fno-trapping-math make sqrt and rint instructions. Sums keep their order, and NaN stays NaN.
# PORTABLE=1 builds for any x86-64 processor with AVX2, or any arm64 one, instead of this machine's.
CC := gcc
X86 := $(filter x86_64,$(shell uname -m))
ifdef SANITIZE
OPTIMIZE ?= -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
else
OPTIMIZE ?= -O3 $(if $(PORTABLE),$(if $(X86),-march=x86-64-v3),-march=native $(if $(X86),-mprefer-vector-width=512))
endif
WARNINGS := -Wall -Wextra -Wno-missing-field-initializers
FLAGS := -std=c11 -D_GNU_SOURCE $(OPTIMIZE) -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=fast \
	$(WARNINGS) $(if $(findstring clang,$(CC)),-Wno-pass-failed) -MMD -MP $(MPI_CFLAGS) $(BLAS_CFLAGS) \
	$(CONDA:%=-I%/include) -DBUILD='"$(ROOT)/$(BUILD)"' -DSOURCE='"$(ROOT)"'

# A backend is a choice of files: those that all share; cpu/ or cuda/; NCCL or not; and the operators that lie beside
# the program that brings them.
BACKENDS := cpu cpu64 cuda simulated
COMMON := $(basename $(filter-out %/nccl.c %/no_nccl.c,$(wildcard common/*/*.c)))
COMMON_cpu := $(COMMON) $(basename $(wildcard common/transformer/cpu/*.c)) common/comm/no_nccl
COMMON_cpu64 := $(COMMON_cpu)
COMMON_cuda := $(COMMON) $(basename $(wildcard common/transformer/cuda/*.cu)) common/comm/$(if $(NCCL),nccl,no_nccl)
OWN := 02_mixed_precision/fp8 05_tensor_parallel/vocabulary 07_context_parallel/key_blocks 08_fused_kernels/fused \
	10_expert_parallel/experts 12_llama/llama
OWN_cpu := $(OWN) $(OWN:%=%_cpu)
OWN_cpu64 := $(OWN_cpu)
OWN_cuda := $(OWN) $(basename $(wildcard $(OWN:%=%_cuda.cu) $(OWN:%=%_cuda/*.cu)))
# private: otherwise prerequisites would inherit the flag and add it again
PRINTS_VERSION := $(BACKENDS:%=$(BUILD)/%/obj/common/run/command_line.o)
$(PRINTS_VERSION): CITATION.cff
$(PRINTS_VERSION): private FLAGS += -DVERSION='"$(shell sed -n 's/^version: *//p' CITATION.cff)"'
$(BUILD)/cpu64/%: private FLAGS += -DREAL64
$(BUILD)/cuda/%: private LIBS += $(CUDA_LIBS) $(NCCL_LIBS)
$(BUILD)/%/nccl.o $(BUILD)/%/fake_nccl.o: private FLAGS += $(NCCL_CFLAGS)

.DEFAULT_GOAL := help
all: cpu cpu64 $(if $(NO_NVCC),,cuda)	## build everything that this machine can build
cpu: $(patsubst %,$(BUILD)/cpu/%,$(PROGRAMS) ladder plan)	## build the programs for the CPU, in float
cpu64: $(PROGRAMS:%=$(BUILD)/cpu64/%)	## build them in double, to compare parallel configurations
CUDA := $(patsubst %,$(BUILD)/cuda/%,$(PROGRAMS) ladder)
cuda: $(if $(NO_NVCC),no-nvcc,$(CUDA))	## build the programs for GPUs: ARCH=sm_90
no-nvcc: ; @echo 'cuda: $(NO_NVCC); "make cpu" builds for the CPU'; exit 1

# In prerequisites, $$ refers to the target of the rule: the backend of build/cpu64/03_data_parallel is cpu64.
.SECONDEXPANSION:
backend = $(notdir $(@D))
objects = $(patsubst %,$(@D)/obj/%.o,$(basename $(1)))
compile = @mkdir -p $(@D); echo "  CC  $@"; $(CC) $(FLAGS) -c $< -o $@
link = @echo "  LD  $@"; $(CC) $(FLAGS) $(filter %.o,$^) $(filter %.a,$^) $(LIBS) -o $@
archive = @rm -f $@; ar qcs $@ $(filter %.o,$^)
# A program is all .c files of its directory, except those of one backend, and the libraries of its backend.
$(foreach b,$(BACKENDS),$(PROGRAMS:%=$(BUILD)/$(b)/%)): \
	$$(call objects,$$(filter-out %_cpu.c,$$(wildcard $$(@F)/*.c))) $$(@D)/libown.a $$(@D)/libcommon.a; $(link)
$(BACKENDS:%=$(BUILD)/%/libown.a): $$(call objects,$$(OWN_$$(backend))); $(archive)
$(BUILD)/cpu/ladder: $$(call objects,08_fused_kernels/ladder/ladder_cpu) $(BUILD)/cpu/libcommon.a; $(link)
$(BUILD)/cuda/ladder: $$(call objects,08_fused_kernels/ladder/ladder_cuda common/base/error); $(link)
$(BACKENDS:%=$(BUILD)/%/libcommon.a): $$(call objects,$$(COMMON_$$(backend))) $$(@D)/flags; $(archive)
$(BUILD)/cpu/obj/%.o: %.c $(BUILD)/cpu/flags; $(compile)
$(BUILD)/cpu64/obj/%.o: %.c $(BUILD)/cpu64/flags; $(compile)
$(BUILD)/cuda/obj/%.o: %.c $(BUILD)/cuda/flags; $(compile)
$(BUILD)/cuda/obj/%.o: %.cu $(BUILD)/cuda/nvcc_flags
	@mkdir -p $(@D); echo "  NVCC  $@"; $(NVCC) --options-file $(BUILD)/cuda/nvcc_flags -c $< -o $@
# Files that change when the compiler, its flags (-march=native is this machine) or the files of a backend change.
changed = if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
$(BACKENDS:%=$(BUILD)/%/flags): always
	@mkdir -p $(@D); { echo "$(subst ",\",$(CC) $(FLAGS)) $(COMMON_$(backend))"; \
		$(CC) $(OPTIMIZE) -Q --help=target 2>/dev/null | grep -m1 march=; } >$@.new; $(changed)
$(BUILD)/cuda/nvcc_flags: always
	@mkdir -p $(@D); echo "$(NVCC_FLAGS)" >$@.new; $(changed)
.DELETE_ON_ERROR:
-include $(shell find build -name '*.d' 2>/dev/null)

# For --timeline: under mpiexec a rank has no terminal.
ifneq ($(MAKE_TERMOUT),)
run: export CLICOLOR_FORCE := 1
run: export COLUMNS := $(shell tput cols 2>/dev/null)
endif
run: known-stage deps-run	## train for a minute, on a GPU if there is one: STAGE=01 NP=4 ARGS=... SIMULATE=1
	@$(if $(filter cpu,$(BACKEND)),$(if $(GPUS),echo "running on the CPU: $(GPUS)"))
	@case "$(NP)" in '' | 0* | *[!0-9]*) \
		echo 'NP: expected a number of ranks from 1 on, got "$(NP)"'; exit 2 ;; esac
	@$(MAKE) --no-print-directory $(BACKEND)
	$(if $(filter-out 1,$(NP)),mpiexec -n $(NP)) $(BUILD)/$(BACKEND)/$(PROGRAM) $(strip $(OF_RUN) $(ARGS))
	@echo 'next: $(PROGRAM)/README.md; "make exercise STAGE=$(NUMBER)" lists parts of the program to write yourself'
unless_given = $(if $(filter --$(1) --$(1)=%,$(ARGS)),,--$(1) $(2))
OF_RUN = $(if $(filter 00,$(NUMBER)),,$(if $(SIMULATE),$(call unless_given,preset,tiny) $(call unless_given,steps,20),\
	$(call unless_given,steps,300) $(call unless_given,eval-every,100) \
	$(if $(filter 01 02 03 04 08 12,$(NUMBER)),$(call unless_given,sample,300))))
include tests/tests.mk $(filter-out %/machine.mk,$(wildcard tools/*/*.mk tools/*/*/*.mk))

help:
	@awk -F':.*## *' '/^[a-z0-9-]+:.*##/ {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
clean:		## remove build/
	rm -rf build
.PHONY: all always cpu cpu64 cuda no-nvcc run help clean
