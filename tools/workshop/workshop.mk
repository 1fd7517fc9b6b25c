# Targets for learners and instructors.

# A tool: the .c files that begin with its name, the functions that start programs, and a backend.
TOOLS := verify diagnose compare sweep
$(foreach b,cpu cpu64,$(patsubst %,$(BUILD)/$(b)/%,$(TOOLS))): \
		$$(call objects,$$(wildcard tools/workshop/$$(@F)*.c) tools/workshop/process) $$(@D)/libown.a $$(@D)/libcommon.a
	$(link)

# diagnose with 12 or 10 instead of 01
diagnose_llama = $(call quick,-DLLAMA $(1) tools/workshop/diagnose*.c 12_llama/hugging_face.c \
	$(BUILD)/cpu64/obj/tools/workshop/process.o)
diagnose_experts = $(call quick,-DEXPERTS $(1) tools/workshop/diagnose*.c $(BUILD)/cpu64/obj/tools/workshop/process.o)
$(BUILD)/cpu64/diagnose_llama $(BUILD)/cpu64/diagnose_experts: \
		$(wildcard tools/workshop/diagnose*.[ch] tools/workshop/single_gpu.h 12_llama/*.[ch] 10_expert_parallel/*.[ch]) \
		$(patsubst %,$(BUILD)/cpu64/%,obj/tools/workshop/process.o libown.a libcommon.a)
	@echo "  CC  $@"; $($(@F)) -o $@

known-stage:
	@test -n "$(PROGRAM)" || { echo "$(if $(MATCHES),STAGE=$(STAGE) is the beginning of several names; write the full" \
		"name of one: $(MATCHES),no program $(STAGE); choose STAGE=$(firstword $(PROGRAMS)) ... $(lastword $(PROGRAMS)))"; \
		exit 2; }

trains: known-stage
	@test "$(NUMBER)" != 00 || { echo "$(PROGRAM) trains nothing; make run STAGE=00 NP=4 measures it"; exit 2; }

EXERCISE := $(or $(SOLUTION),build/exercise/$(NUMBER).$(N))
exercise: known-stage	## copy a program with some code removed, to restore: STAGE=05 N=1; without N: list them
	@$(if $(N),mkdir -p build/exercise;) tools/workshop/exercise.sh $(PROGRAM) $(if $(N),"$(N)" "$(EXERCISE)")

# The user's train.c, in the tree or in the copy of an exercise, as a float64 program. -O1: it is compiled more often
# than run. It is compared with 01, a mixture with 10 on one rank, a Llama with 12 on one rank: those of the last commit,
# if the tree's differ.
EDITED := $(if $(N),$(EXERCISE),$(PROGRAM))
REFERENCES := 01_single_gpu 10_expert_parallel 12_llama
REFERENCE := $(BUILD)/verify/reference
DIAGNOSE := diagnose$(if $(filter 12,$(NUMBER)),_llama)$(if $(filter 10 11,$(NUMBER)),_experts)
quick = $(CC) $(filter-out -MMD -MP,$(FLAGS)) -O1 -DREAL64 $(1) $(patsubst %,$(BUILD)/cpu64/%,libown.a libcommon.a) $(LIBS)
edited: known-stage deps-run
	@test -d $(EDITED) || { echo "there is no $(EDITED); make it: make exercise STAGE=$(NUMBER) N=$(N)"; exit 2; }
verify: $(if $(filter 00,$(NUMBER)),verify-collectives,verify-training)	## compare a train.c that you changed with 01: STAGE=05 NP=4 ARGS="..."; N=1: exercise 1; FULL=1: more cases
verify-training: edited
	@test -f $(BUILD)/cpu64/libown.a || echo "building the programs in float64, once: about a minute on two cores"
	@$(MAKE) --no-print-directory $(patsubst %,$(BUILD)/cpu64/%,$(if $(filter 12,$(NUMBER)),12_llama, \
		01_single_gpu 10_expert_parallel) verify $(DIAGNOSE) libown.a) >/dev/null
	@mkdir -p $(BUILD)/verify
	@$(call quick,$(if $(N),-Wno-unused) $(EDITED)/*.c) -o $(BUILD)/verify/$(notdir $(EDITED))
	@watched=$(BUILD)/verify/$(notdir $(EDITED))_sanitized; $(if $(SANITIZE),rm -f $$watched,$(call quick,-w -Og -g \
		-fsanitize=address $(EDITED)/*.c) -o $$watched 2>/dev/null && ASAN_OPTIONS=detect_leaks=0 $$watched --help \
		>/dev/null 2>&1 || { rm -f $$watched; echo "accesses beyond arrays are not looked for, because" \
		"$(CC) -fsanitize=address (libasan) makes no program that starts"; })
	@git diff --quiet HEAD -- $(REFERENCES) 2>/dev/null; case $$? in \
	0) of=$(BUILD)/cpu64 ;; \
	1) of=$(REFERENCE); echo "01, 10 or 12 differs from the last commit: the reference is the committed one"; \
		$(MAKE) --no-print-directory reference || exit ;; \
	*) of=$(BUILD)/cpu64; case $(EDITED) in 01_*|10_*|12_*) echo "make verify compares $(EDITED) with the last" \
		"commit's, but this directory is no git repository: start from git clone, or from make exercise"; exit 2; \
		esac ;; \
	esac; REFERENCE=$(ROOT)/$$of FULL=$(FULL) RECORD=$(RECORD) EXPECT="$(EXPECT)" EXERCISE=$(N) $(BUILD)/cpu64/verify $(PROGRAM) \
		$(BUILD)/verify/$(notdir $(EDITED)) "$(if $(filter file,$(origin NP)),,$(NP))" $(ARGS); $(note_attempt)
note_attempt = status=$$?; $(if $(N),$(if $(SOLUTION),true,tools/workshop/exercise.sh --tried $(NUMBER).$(N) $$status $(EDITED));) exit $$status

passed:		## write a summary of the exercises that you have passed: NAME="Ada Lovelace"; CHECK=DIR: verify the summaries of many
	@tools/workshop/passed.sh $(if $(CHECK),--check "$(CHECK)" "$(MINIMUM)","$(NAME)")

# 00 compares its collectives with the library's, on 1 to 8 ranks. AddressSanitizer watches, where the compiler has it.
EDITED_00 = $(BUILD)/verify/$(notdir $(EDITED))
verify-collectives: edited
	@$(MAKE) --no-print-directory $(BUILD)/cpu64/libown.a $(BUILD)/cpu64/libcommon.a >/dev/null
	@mkdir -p $(BUILD)/verify
	@$(call quick,$(if $(N),-Wno-unused) $(EDITED)/*.c) -o $(EDITED_00)
	@$(if $(SANITIZE),,$(call quick,-w -Og -g -fsanitize=address $(EDITED)/*.c) -o $(EDITED_00)_watched 2>/dev/null && \
		mv $(EDITED_00)_watched $(EDITED_00);) true
	@tools/workshop/verify_collectives.sh $(EDITED_00) "$(if $(filter file,$(origin NP)),1 2 3 4 5 6 7 8,$(NP))" \
		--$(if $(RECORD),record,$(if $(N),exact,compare)) $(ARGS); $(note_attempt)

reference:
	@rm -rf $(REFERENCE) && mkdir -p $(REFERENCE)/of && ln -s $(ROOT)/common $(ROOT)/05_tensor_parallel $(REFERENCE)/of
	@git archive HEAD $(REFERENCES) | tar -x -C $(REFERENCE)/of
	@$(foreach p,$(REFERENCES),$(call quick,$(REFERENCE)/of/$(p)/*.c) -o $(REFERENCE)/$(p) &&) \
		$(call quick,-DSINGLE_GPU='"$(ROOT)/$(REFERENCE)/of/01_single_gpu/train.c"' tools/workshop/diagnose*.c \
		$(BUILD)/cpu64/obj/tools/workshop/process.o) -o $(REFERENCE)/diagnose && \
		$(call diagnose_llama,-DSINGLE_GPU='"$(ROOT)/$(REFERENCE)/of/12_llama/train.c"') -o $(REFERENCE)/diagnose_llama && \
		$(call diagnose_experts,-DSINGLE_GPU='"$(ROOT)/$(REFERENCE)/of/10_expert_parallel/train.c"') \
			-o $(REFERENCE)/diagnose_experts

# The bytes, FLOPs and overlapping transfers of the project's programs, which verify compares with.
verify-costs:
	@rm -f tools/workshop/verify_costs.tsv
	@$(MAKE) -s --no-print-directory verify STAGE=00 RECORD=1
	@for s in $(STAGES); do $(MAKE) -s --no-print-directory verify STAGE=$$s FULL=1 RECORD=1 || exit; done

compare: deps-run	## compare two --dump-gradients files: A=one.safetensors B=two.safetensors TOLERANCE=1e-4 HEADS=12
	@$(MAKE) --no-print-directory $(BUILD)/cpu/compare >/dev/null
	@$(BUILD)/cpu/compare "$(A)" "$(B)" "$(TOLERANCE)" "$(HEADS)"

ladder: deps-run	## run the matmul kernels from naive to the library, on a GPU if there is one
	@$(MAKE) --no-print-directory $(BUILD)/$(BACKEND)/ladder
	@$(BUILD)/$(BACKEND)/ladder $(ARGS)

sweep: trains deps	## measure how a program scales: STAGE=05 NP="1 2 4 8" ARGS="--sequence-parallel"
	@$(MAKE) -s --no-print-directory $(BACKEND) $(BUILD)/cpu/sweep
	@$(BUILD)/cpu/sweep $(BACKEND) $(PROGRAM) "$(if $(filter file,$(origin NP)),1 2 4 8,$(NP))" $(ARGS)

diff: known-stage	## show what a program changes in its base: STAGE=05; FULL=1: with the full text of changed functions
	@tools/workshop/changes.sh --diff $(PROGRAM)

changes:		## renew the DIFF.md of each program, which explains what it changes
	@tools/workshop/changes.sh --update

journey: $(BUILD)/cpu/plan	## renew each chapter's table of Llama 3 70B on 64 H100s
	@PLAN=$< tools/workshop/journey.sh --update

figures: deps		## redraw the figures of the READMEs from new runs
	@$(MAKE) --no-print-directory cpu
	@tools/workshop/figures.sh

found = CC='$(CC) $(CONDA:%=-I%/include) $(PREFIXES)' MPI_CFLAGS='$(MPI_CFLAGS)' MPI_LIBS='$(MPI_LIBS)' \
	BLAS_CFLAGS='$(BLAS_CFLAGS)' BLAS_LIBS='$(BLAS_LIBS)'
deps: known-stage	## install missing packages of the distribution
	@$(found) tools/machine/deps.sh
deps-run: known-stage
	@$(found) tools/machine/deps.sh run

check-machine:	## check what this machine can run, and what to install for more
	@$(found) OPTIMIZE='$(OPTIMIZE)' NVCC='$(NVCC)' NCCL='$(NCCL)' NCCL_CFLAGS='$(NCCL_CFLAGS)' \
		tools/machine/check_machine.sh

.PHONY: known-stage trains exercise edited verify passed verify-training verify-collectives reference verify-costs compare ladder sweep diff changes journey figures deps deps-run check-machine
