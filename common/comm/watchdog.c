#include "watchdog.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../error.h"

typedef struct {
    double seconds;
    int rank;
    char todo[64];
} Order;

static int orders = -1;         /* socket to the watchdog, which ends when the socket closes with the rank */
static pid_t watchdog;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* Returns the process's state from /proc: 'T' stopped, 't' held by a debugger. */
static char state_of(pid_t pid)
{
    char path[64], state = '?';

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
        state = '?';
    if (f)
        fclose(f);
    return state;
}

static _Noreturn void end_rank(const Order *o, pid_t rank, char state)
{
    char host[64] = "", name[32] = "";

    gethostname(host, sizeof host - 1);
    if (o->rank >= 0)
        snprintf(name, sizeof name, "rank %d = ", o->rank);
    dprintf(STDERR_FILENO, "%s: %s%s:%d %s; it had %.0f seconds to %s (--timeout)\n", error_name(), name, host, rank,
            state == 'T' ? "is stopped" : "still waits for other ranks, or for what started them", o->seconds, o->todo);
    kill(rank, SIGKILL);
    _exit(1);
}

static _Noreturn void watch(int from, pid_t rank)
{
    Order o = {0};
    double passed = 0, looked = now();

    for (;;) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        if (poll(&p, 1, o.seconds ? 100 : -1) > 0) {
            if (read(from, &o, sizeof o) != sizeof o)
                _exit(0);
            passed = 0, looked = now();
        }
        const double t = now(), since = t - looked;
        const char state = state_of(rank);
        looked = t;
        if (since < 1 && state != 't')          /* more than a second between two looks: this process was stopped too */
            passed += since;
        if (o.seconds && passed > (state == 'T' ? o.seconds : 1.1 * o.seconds + 5))
            end_rank(&o, rank, state);
    }
}

void watchdog_start(void)
{
    const pid_t rank = getpid();
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return;                                 /* all else works without a watchdog */
    watchdog = fork();
    if (watchdog == 0) {
        for (int s = 1; s < NSIG; s++)          /* signals to the rank's process group: the watchdog ends after it */
            signal(s, SIG_IGN);
        prctl(PR_SET_NAME, "watchdog");
        dup2(ends[0], STDIN_FILENO);
        close(STDOUT_FILENO);                   /* so that readers of the rank's output see its end */
        closefrom(STDERR_FILENO + 1);
        watch(STDIN_FILENO, rank);
    }
    close(ends[0]);
    orders = ends[1];
    if (watchdog < 0)
        watchdog_stop();
}

void watchdog_stop(void)
{
    if (orders < 0)
        return;
    close(orders);
    orders = -1;
    if (watchdog > 0)
        waitpid(watchdog, NULL, 0);
}

void watchdog_expect(double seconds, int rank, const char *todo)
{
    Order o = {.seconds = seconds, .rank = rank};

    snprintf(o.todo, sizeof o.todo, "%s", todo);
    if (orders >= 0 && send(orders, &o, sizeof o, MSG_NOSIGNAL) != sizeof o)
        watchdog_stop();
}
