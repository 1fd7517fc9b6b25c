/* 01 without its main, for programs that call its forward and backward. Include it in one file only. */
#ifndef SINGLE_GPU_H
#define SINGLE_GPU_H

#ifndef SINGLE_GPU
#define SINGLE_GPU "../../01_single_gpu/train.c"           /* make verify may take the one of the last commit */
#endif
#define main program_main
#include SINGLE_GPU
#undef main

static int first_step;              /* the step at which the loaded checkpoint was saved; 0 without one */

/* Does what 01's main does before its first step. */
static Batch set_up(const char *name, const char *summary, int argc, char **argv, const ProgramOption *more)
{
    static ParamShard all;

    run_begin(name, summary, argc, argv, more);
    sizes();
    predict();
    layout = layout_create(options.config, FULL_MODEL);
    all = (ParamShard){
        .params = tensor_create(MEM_PARAMETERS, REAL, "params", shape(layout.count)),
        .gradients = tensor_create(MEM_GRADIENTS, REAL, "gradients", shape(layout.count)),
        .m = tensor_create(MEM_OPTIMIZER, REAL, "m", shape(layout.count)),
        .v = tensor_create(MEM_OPTIMIZER, REAL, "v", shape(layout.count))};
    params = params_view(&layout, all.params);
    gradients = params_view(&layout, all.gradients);
    optimizer = (AdamW){.layout = &layout, .shards = &all, .count = 1};
    acts = acts_create();
    d_block = block_acts_create(MEM_WORKSPACE, (BlockActs){0}, false);
    d_x = tensor_create(MEM_WORKSPACE, REAL, "d_x", shape(R, H));
    d_final = tensor_create(MEM_WORKSPACE, REAL, "d_final", shape(R, H));
    loss = tensor_create(MEM_WORKSPACE, F64, "loss", shape(1));
    rope = tensor_create(MEM_WORKSPACE, REAL, "rope", shape(T, D));
    rope_table(rope, 0);
    first_step = run_load(&optimizer);
    return batch_create();
}

#endif
