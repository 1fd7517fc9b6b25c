# The cuda backend as nvcc compiles it, on a simulated GPU (tools/simulator/README.md). code=compute_80 is PTX alone.
SIMULATOR := $(basename $(filter-out $(if $(NCCL),,%/fake_nccl.cc),$(wildcard tools/simulator/*.cc)))
COMMON_simulated := $(COMMON_cuda)
OWN_simulated := $(OWN_cuda)
SIMULATED := $(patsubst %,$(BUILD)/simulated/%,$(PROGRAMS) $(TESTS) parity ladder planted_kernels)
SIMULATED_NVCC_FLAGS = $(filter-out -gencode%,$(NVCC_FLAGS)) -no-compress -gencode=arch=compute_80,code=compute_80

simulated: $(if $(NO_NVCC),no-nvcc,$(BUILD)/simulated/$(PROGRAM))
	@echo "a simulated GPU: its results mean something, its times don't"
COUNTED := $(patsubst %,$(BUILD)/simulated/%,ladder 01_single_gpu 03_data_parallel 08_fused_kernels)
counts: deps		## count what the kernels of the ladder and of 08 do, on a simulated GPU, and what bounds their speed
	@$(MAKE) --no-print-directory $(if $(NO_NVCC),no-nvcc,$(COUNTED))
	@SIMULATED_COUNTS=1 $(BUILD)/simulated/ladder --size 512 --rungs 1-6 --seconds 0 --copy 0 | sed '1,/^$$/d;1,/^$$/d'
	@SIMULATED_COUNTS=1 $(BUILD)/simulated/08_fused_kernels --dtype bf16 --layers 1 --hidden 512 --heads 8 --seq 512 \
		--vocab 512 --micro-batch 1 --steps 1 --quiet
	@echo; for p in 01_single_gpu 03_data_parallel; do echo "$$p, a step of preset 10m on one rank, with small sizes:"; \
		SIMULATED_COUNTS=calls $(BUILD)/simulated/$$p --preset 10m --hidden 48 --seq 16 --steps 1 --quiet | \
			sed -n 's/^calls: launches/  launches/p'; done
.PHONY: simulated counts
$(SIMULATED): private LIBS += -lstdc++ -ldl
$(SIMULATED): $$(call objects,$(SIMULATOR))
$(BUILD)/simulated/ladder: $$(call objects,08_fused_kernels/ladder/ladder_cuda common/base/error)
	$(link)
$(BUILD)/simulated/planted_kernels: $$(call objects,tests/tools/planted_kernels)
	$(link)
$(BUILD)/simulated/obj/%.o: %.c $(BUILD)/simulated/flags
	$(compile)
$(BUILD)/simulated/obj/%.o: %.cc $(BUILD)/simulated/flags
	@mkdir -p $(@D); echo "  CXX $@"; $(CXX) -std=c++20 $(filter-out -std=%,$(FLAGS)) \
		-ffp-contract=off -fno-strict-aliasing $(CUDA_INCLUDE) -c $< -o $@
$(BUILD)/simulated/obj/%.o: %.cu $(BUILD)/simulated/nvcc_flags
	@mkdir -p $(@D); echo "  NVCC  $@"; $(NVCC) --options-file $(BUILD)/simulated/nvcc_flags -c $< -o $@
$(BUILD)/simulated/nvcc_flags: always
	@mkdir -p $(@D); echo "$(SIMULATED_NVCC_FLAGS)" >$@.new; $(changed)
