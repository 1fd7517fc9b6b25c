#include "start.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "threads.h"

static bool nohup;

static void look_for_nohup(void)
{
    struct sigaction at_start;

    nohup = sigaction(SIGHUP, NULL, &at_start) == 0 && at_start.sa_handler == SIG_IGN;
}

__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(void) = look_for_nohup;

bool started_by_nohup(void)
{
    return nohup;
}

void start_again(char **argv)
{
    const cpu_set_t cores = threads_cores();
    char *program = realpath("/proc/self/exe", NULL);   /* by its own name, which ps and top show */

    if (!program)
        return;
    if (nohup)
        signal(SIGHUP, SIG_IGN);                        /* a handler would not outlive the start */
    sched_setaffinity(0, sizeof cores, &cores);         /* otherwise OpenMP would find only those of this thread */
    execv(program, argv);
    free(program);
}
