# The planner, which needs cJSON, but neither MPI nor BLAS.
PLANNER := $(basename $(wildcard tools/planner/*.c)) 09_combined/formulas 11_five_dimensions/formulas \
	$(addprefix common/base/,error memory options print tensor)
$(BUILD)/cpu/plan: private LIBS := -lcjson -lm $(PREFIXES)
$(BUILD)/cpu/plan: $$(call objects,$(PLANNER))
	$(link)

# Of the variables on make's command line, those that this target would ignore; how the planner is built is no question.
PLAN_VARIABLES := MODEL GPUS SEQ BATCH HARDWARE ARGS FIGURE
PLAN_UNKNOWN = $(filter-out $(PLAN_VARIABLES) BUILD ROOT SANITIZE CC OPTIMIZE,\
	$(foreach v,$(.VARIABLES),$(if $(findstring command,$(origin $v)),$v)))
PLAN = $(BUILD)/cpu/plan --model "$(or $(MODEL),8b)" --gpus "$(or $(GPUS),64)" $(if $(SEQ),--seq "$(SEQ)") \
	$(if $(BATCH),--batch "$(BATCH)") $(if $(HARDWARE),--hardware "$(HARDWARE)") $(ARGS)
plan:			## which grid of ranks for a model: MODEL=8b GPUS=64 SEQ=8192 BATCH=4M ARGS="--explain best" FIGURE=plan.svg
	@test -z "$(PLAN_UNKNOWN)" || { echo "$(PLAN_UNKNOWN): no variable of make plan; it has $(PLAN_VARIABLES)"; exit 2; }
	@$(MAKE) --no-print-directory $(BUILD)/cpu/plan >/dev/null
	@$(PLAN)
	@$(if $(FIGURE),tools/planner/figure.sh "$(FIGURE)" $(PLAN))
.PHONY: plan
