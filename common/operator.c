#include "operator.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "device.h"
#include "error.h"
#include "trace.h"

static OpAccount accounts[64];
static int account_count;
static double pretend_flops;

static OpAccount *current;                      /* the operator between op_begin and op_end */
static OpAccount others;                        /* those that are not to be counted */
static bool counting = true;
static double began, flops_of_call, read_before;

/* On a GPU an operator has not run yet when its call returns: its time is that between two points of the stream, which
 * is read later, when the device has been there. */
enum { POINTS = 4096 };
static struct {
    OpAccount *account;
    DeviceEvent begin, end;
} points[POINTS];
static int64_t points_begun, points_read;       /* of all times; number n is at n mod POINTS */
static bool timed;

static OpAccount *account_of(const char *name)
{
    for (int i = 0; i < account_count; i++)
        if (!strcmp(accounts[i].name, name))
            return &accounts[i];
    accounts[account_count].name = name;
    return &accounts[account_count++];
}

static void read_point(void)
{
    const int64_t i = points_read++ % POINTS;
    const double begin = device_event_seconds(&points[i].begin), end = device_event_seconds(&points[i].end);

    points[i].account->seconds += end - begin;
}

void op_begin(const char *name, Operands writes, Operands updates, Operands reads, double flops, bool fits,
              const char *rule)
{
    const Operands *all[] = {&writes, &updates, &reads};
    double bytes = read_before;

    if (!fits) {
        char text[1024];
        int at = 0;
        for (int k = 0; k < 3; k++)
            for (int i = 0; i < all[k]->count; i++) {
                const Tensor t = all[k]->t[i];
                char *one = tensor_describe(t);
                at += snprintf(text + at, at < (int)sizeof text ? sizeof text - at : 0, "%s%s%s%s", at ? ", " : "",
                               t.data ? one : "none", t.data ? " " : "", t.data ? dtype_name(t.dtype) : "");
                free(one);
            }
        fail("%s: %s; but it takes %s", name, text, rule);
    }
    for (int k = 2; k >= 0; k--)                /* reads first: what is written may lie where something was read */
        for (int i = 0; i < all[k]->count; i++) {
            bytes += tensor_bytes(all[k]->t[i]);
            trace_operand(all[k]->t[i], k == 0 ? TRACE_WRITE : k == 1 ? TRACE_UPDATE : TRACE_READ);
        }
    current = counting ? account_of(name) : &others;
    current->calls++;
    current->flops += flops;
    current->bytes += bytes;
    read_before = 0;
    flops_of_call = flops;
    trace_operator(name);
    began = clock_seconds();
    if (timed) {
        if (points_begun - points_read == POINTS)
            read_point();
        points[points_begun % POINTS].account = current;
        points[points_begun % POINTS].begin = device_event();
    }
}

void op_reads(Tensor t)
{
    trace_operand(t, TRACE_READ);
    read_before += tensor_bytes(t);
}

void op_end(void)
{
    if (pretend_flops) {
        device_wait();
        while (clock_seconds() - began < flops_of_call / pretend_flops) {
            comm_progress();
            sched_yield();                      /* other ranks may share this core, and have real work to do */
        }
    }
    comm_progress();                            /* MPI moves data only while somebody calls it */
    if (timed)
        points[points_begun++ % POINTS].end = device_event();
    else if (device_is_host())
        current->seconds += clock_seconds() - began;
    trace_end();
}

int ops_account(const OpAccount **a)
{
    while (points_read < points_begun)
        read_point();
    *a = accounts;
    return account_count;
}

void ops_account_reset(void)
{
    while (points_read < points_begun)
        read_point();
    account_count = 0;
    memset(accounts, 0, sizeof accounts);
}

void ops_count(bool yes)
{
    counting = yes;
}

void ops_time(void)
{
    timed = !device_is_host();
}

void ops_pretend(double flops_per_second)
{
    pretend_flops = flops_per_second;
}
