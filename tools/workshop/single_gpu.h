/* 01, or with LLAMA or EXPERTS defined 12 or 10 on one rank, without its main, for a program that uses its static
 * functions and variables. Include it in one file only. */
#ifndef SINGLE_GPU_H
#define SINGLE_GPU_H

#if !defined SINGLE_GPU && defined LLAMA
#define SINGLE_GPU "../../12_llama/train.c"
#elif !defined SINGLE_GPU && defined EXPERTS
#define SINGLE_GPU "../../10_expert_parallel/train.c"
#elif !defined SINGLE_GPU
#define SINGLE_GPU "../../01_single_gpu/train.c"           /* make verify may take the one of the last commit */
#endif
#define main single_gpu_main                                /* the program has a main of its own */
#include SINGLE_GPU
#undef main

static int first_step;              /* the step at which the loaded checkpoint was saved; 0 without one */

/* Does what 01's main does before its first step. */
static Batch program_begin(const char *name, const char *summary, int argc, char **argv, const ProgramOption *more)
{
#ifdef LLAMA
    use_llama();
#endif
    run_begin(name, summary, argc, argv, more);
#ifdef LLAMA
    tp = kv = world;
#elif defined EXPERTS
    dp = ep = edp = world;
#endif
    Batch batch = set_up();
    first_step = run_load(&optimizer);
    return batch;
}

#endif
