# What learners and instructors call.

known-stage:
	@test -n "$(PROGRAM)" || { echo "STAGE=$(STAGE) is $(if $(MATCHES),the beginning of several names;" \
		"write one of them whole: $(MATCHES),none of: $(STAGES))"; exit 2; }

EXERCISE := build/exercise/$(NUMBER).$(N)
exercise: known-stage	## a copy of a stage with a part to be put there again: STAGE=05 N=1; without N: a list
	@$(if $(N),mkdir -p build/exercise;) tests/workshop/exercise.sh $(PROGRAM) $(if $(N),"$(N)" "$(EXERCISE)")

# A reader's train.c, in the tree or in an exercise's copy, as a program in double. -O1: it is compiled more often than
# run.
EDITED := $(if $(N),$(EXERCISE),$(PROGRAM))
verify: known-stage deps	## a train.c that you changed, against 01: STAGE=05 NP=4 ARGS="..."; N=1: exercise 1
	@test -d $(EDITED) || { echo "there is no $(EDITED): make exercise STAGE=$(NUMBER) N=$(N)"; exit 2; }
	@$(MAKE) --no-print-directory $(patsubst %,$(BUILD)/cpu64/%,01_single_gpu verify diagnose libfused.a) >/dev/null
	@mkdir -p $(BUILD)/verify
	@$(CC) $(filter-out -MMD -MP,$(FLAGS)) -O1 $(if $(N),-Wno-unused) -DREAL64 $(EDITED)/*.c \
		$(patsubst %,$(BUILD)/cpu64/%,libfused.a libcommon.a) $(LIBS) -o $(BUILD)/verify/$(notdir $(EDITED))
	@$(if $(filter 01_%,$(EDITED)),$(MAKE) --no-print-directory $(BUILD)/cpu64/test_gradients >/dev/null && \
		echo "01's gradients against differences of its losses:" && $(BUILD)/cpu64/test_gradients)
	@$(BUILD)/cpu64/verify $(PROGRAM) $(BUILD)/verify/$(notdir $(EDITED)) \
		"$(if $(filter file,$(origin NP)),,$(NP))" $(ARGS)

compare: deps	## two --dump-gradients files: A=one.safetensors B=two.safetensors TOLERANCE=1e-4 HEADS=12
	@$(MAKE) --no-print-directory $(BUILD)/cpu/compare >/dev/null
	@$(BUILD)/cpu/compare "$(A)" "$(B)" "$(TOLERANCE)" "$(HEADS)"

ladder: deps	## matrix multiplication from naive to the library, rung by rung: on a GPU if one answers
	@$(MAKE) --no-print-directory $(BUILD)/$(BACKEND)/ladder
	@$(BUILD)/$(BACKEND)/ladder $(ARGS)

sweep: known-stage deps	## how a stage scales, table and figure: STAGE=05 NP="1 2 4 8" ARGS="--sequence-parallel"
	@$(MAKE) -s --no-print-directory $(BACKEND) $(BUILD)/cpu/sweep
	@$(BUILD)/cpu/sweep $(BACKEND) $(PROGRAM) "$(if $(filter file,$(origin NP)),1 2 4 8,$(NP))" $(ARGS)

diff: known-stage	## what a stage changes: STAGE=05; FULL=1: each changed function whole
	@tests/workshop/changes.sh --diff $(PROGRAM)

changes:		## writes the tables of what changes into the READMEs
	@tests/workshop/changes.sh --update

figures: deps		## draws the figures of the READMEs anew, from runs made now
	@$(MAKE) --no-print-directory cpu
	@tests/workshop/figures.sh

deps:			## install what is missing, from the distribution's packages
	@tests/workshop/deps.sh

check-machine:	## what this machine has, what runs on it and how, and what to install for more
	@CC='$(CC)' OPTIMIZE='$(OPTIMIZE)' MPI_CFLAGS='$(MPI_CFLAGS)' MPI_LIBS='$(MPI_LIBS)' \
		BLAS_CFLAGS='$(BLAS_CFLAGS)' BLAS_LIBS='$(BLAS_LIBS)' NVCC='$(NVCC)' NCCL='$(NCCL)' \
		NCCL_CFLAGS='$(NCCL_CFLAGS)' tests/workshop/check_machine.sh

.PHONY: known-stage exercise verify compare ladder sweep diff changes figures deps check-machine
