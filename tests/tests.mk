# Tests and benchmarks. simulator.mk has the simulated GPU.

# A test program is its .c file in a folder of tests/, the harness, and a backend; a benchmark needs no cmocka.
TESTS := $(basename $(notdir $(wildcard tests/*/test_*.c)))
HARNESS := tests/harness tests/tensors tools/workshop/process
BENCHES := bench bench_cuda
tested := $(foreach b,$(BACKENDS),$(patsubst %,$(BUILD)/$(b)/%,$(TESTS) parity))
$(tested): private LIBS += -lcmocka
$(tested): $$(call objects,$$(wildcard tests/*/$$(@F).c) $(HARNESS)) $$(@D)/libown.a $$(@D)/libcommon.a; $(link)
$(BENCHES:%=$(BUILD)/cpu/%): \
		$$(call objects,tests/bench/$$(@F) tools/workshop/process) $$(@D)/libown.a $$(@D)/libcommon.a; $(link)

# Whether nvcc and the headers of CUDA 12.0 or later are found: then the CUDA backend runs on a simulated GPU (simulator.mk).
CUDA_HEADERS := $(shell echo 'static_assert(CUDART_VERSION >= 12000);' | $(CXX) $(CUDA_INCLUDE) \
	$(addprefix -include ,cuda_runtime_api.h cublasLt.h cuda_fp8.h) -x c++ -fsyntax-only - 2>/dev/null && echo yes)
SIMULATE_TESTS := $(if $(SANITIZE)$(NO_NVCC),,$(CUDA_HEADERS))

# The test programs that "make test" runs, and the tools that they start. TEST=pipeline selects test_pipeline.
TEST :=
TEST_PROGRAMS := $(patsubst %,$(BUILD)/cpu64/%,$(filter-out test_cuda test_simulator,$(TESTS))) \
	$(BUILD)/cpu/test_operators $(BUILD)/cpu/test_formats $(if $(SIMULATE_TESTS), \
	$(BUILD)/cpu64/test_simulator $(BUILD)/simulated/test_cuda)
TEST_NAMES := $(sort book $(patsubst test_%,%,$(notdir $(TEST_PROGRAMS))))
CHOSEN := $(if $(TEST),$(foreach t,$(TEST),$(filter %/test_$(t),$(TEST_PROGRAMS))),$(TEST_PROGRAMS))
STARTS_sweep := $(BUILD)/cpu/sweep
STARTS_readmes := $(BUILD)/cpu/plan
STARTS_mixed_precision := $(BUILD)/cpu64/verify $(BUILD)/cpu64/diagnose
STARTS_workshop := $(BUILD)/cpu/sweep $(BUILD)/cpu/compare $(STARTS_mixed_precision) \
	$(BUILD)/cpu64/diagnose_llama $(BUILD)/cpu64/diagnose_experts
STARTS_cuda := $(patsubst %,$(BUILD)/simulated/%,$(PROGRAMS) parity ladder test_comm) \
	$(patsubst %,$(BUILD)/cpu/%,parity compare bench_cuda)
STARTS_simulator := $(patsubst %,$(BUILD)/simulated/%,planted_kernels ladder 08_fused_kernels)
# These start no program of the project.
ALONE := $(addprefix test_,comm operators formats parts safetensors gradients)
STARTED := $(foreach t,$(patsubst test_%,%,$(notdir $(CHOSEN))),$(STARTS_$(t)))

test: known-test deps	## run the tests, in about seven minutes, nine with nvcc; TEST=pipeline: one of them; SANITIZE=1: with sanitizers
	@$(if $(filter-out book,$(or $(TEST),all)),$(MAKE) --no-print-directory run-tests)
	@$(if $(filter book,$(TEST)),$(MAKE) --no-print-directory test-book)

test-full: known-test deps	## run all cases of the tests; TEST=pipeline: of one test
	@$(MAKE) --no-print-directory run-tests FULL=1
	@$(MAKE) --no-print-directory test-book FULL=1

known-test:
	@test -z "$(filter-out $(TEST_NAMES),$(TEST))" || { echo "TEST=$(TEST) is none of: $(TEST_NAMES)"; exit 2; }

run-tests: known-test $(if $(filter-out $(ALONE),$(notdir $(CHOSEN))),cpu cpu64) $(CHOSEN) $(STARTED)
ifndef TEST
	@$(if $(SIMULATE_TESTS)$(SANITIZE),,echo "no test of the GPU kernels on a simulated GPU: nvcc and the headers of" \
		"CUDA 12.0 or later are not found")
endif
	@tests/run.sh $(if $(FULL),--full) $(CHOSEN)

test-cuda: deps		## compare operators and gradients on a GPU with the CPU
	$(call needs_gpu,"make test" has these tests on a simulated GPU)
	@$(MAKE) --no-print-directory cuda cpu cpu64 $(BUILD)/cpu/parity \
		$(if $(NO_NVCC),,$(BUILD)/cuda/test_cuda $(BUILD)/cuda/parity)
	@$(BUILD)/cuda/test_cuda

bench: deps		## measure the speed of 01 and 12 beside this machine's sgemm
	@$(MAKE) --no-print-directory cpu $(BUILD)/cpu/bench
	@$(CURDIR)/$(BUILD)/cpu/bench

bench-cuda: deps	## measure speed on a GPU: tokens/s, MFU, and the time and bandwidth of operators
	$(call needs_gpu,"make bench" measures the CPU)
	@$(MAKE) --no-print-directory cuda $(BUILD)/cpu/bench_cuda
	@$(BUILD)/cpu/bench_cuda $(BUILD)/cuda

PYTHON ?= python3
bench-torch: deps	## measure the same model in PyTorch, in turns with 01, on a GPU if there is one; PYTHON=python3
	@$(PYTHON) -c "import torch, numpy, safetensors" 2>/dev/null || { \
		echo "$(PYTHON) has no torch, numpy or safetensors; python3 -m venv DIR &&" \
		"DIR/bin/pip install torch numpy safetensors, then make bench-torch PYTHON=DIR/bin/python"; exit 1; }
	@$(MAKE) --no-print-directory $(BACKEND)
	@$(PYTHON) tests/bench/bench_torch.py $(BACKEND)

bench-llm-c: deps	## measure GPT-2 124M on the CPU, in turns with llm.c; LLM_C=DIR, its checkout
	@[ "$(LLM_C)" ] || { echo "make bench-llm-c needs llm.c: git clone https://github.com/karpathy/llm.c &&" \
		"make -C llm.c train_gpt2, then make bench-llm-c LLM_C=llm.c"; exit 1; }
	@$(MAKE) --no-print-directory cpu
	@$(PYTHON) tests/bench/bench_llm_c.py $(LLM_C)

lint:			## run clang-tidy on the CPU sources
	@tests/lint.sh $(MPI_CFLAGS) $(BLAS_CFLAGS) $(NCCL_CFLAGS)

.PHONY: test test-full known-test run-tests test-cuda bench bench-cuda bench-torch bench-llm-c lint
