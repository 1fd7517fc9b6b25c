# The planner, which needs neither MPI nor BLAS.
PLANNER := $(basename $(wildcard 09_combined/planner/*.c)) 09_combined/formulas \
	$(addprefix common/,error memory options print tensor)
$(BUILD)/cpu/plan: private LIBS := -lm
$(BUILD)/cpu/plan: $$(call objects,$(PLANNER))
	$(link)

MODEL ?= 8b
GPUS ?= 64
plan:			## which grid of ranks for a model: MODEL=8b GPUS=64 ARGS="--explain best" FIGURE=plan.svg
	@$(MAKE) --no-print-directory $(BUILD)/cpu/plan >/dev/null
	@$(BUILD)/cpu/plan --model "$(MODEL)" --gpus "$(GPUS)" $(ARGS)
	@$(if $(FIGURE),09_combined/planner/figure.sh "$(FIGURE)" \
		$(BUILD)/cpu/plan --model "$(MODEL)" --gpus "$(GPUS)" $(ARGS))
.PHONY: plan
