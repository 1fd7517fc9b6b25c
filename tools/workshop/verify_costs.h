/* What a run costs beside the project's own program: a correct program may still send twice the bytes, keep a buffer
 * too many, recompute what it has, wait for transfers that could overlap, or have groups whose ranks are far apart. One
 * that costs less is as suspicious. verify_costs.tsv has the project's numbers for the cases of verify_cases.c; `make
 * verify-costs` renews it. */
#ifndef VERIFY_COSTS_H
#define VERIFY_COSTS_H

#include <cjson/cJSON.h>

#include "verify_cases.h"

extern char waste[4096];        /* what the current configuration costs more than the project's program, or less */
extern bool suspicious;         /* it costs less, or rounds otherwise: that is hardly waste */

/* From the --report and --trace of a run: adds what it costs more or less, nothing if the case has no row; or appends
 * the case's row. */
void compare_costs(const Case *c, const cJSON *report, const char *trace);
void record_costs(const Case *c, const cJSON *report, const char *trace);

double number_of(const cJSON *json, const char *name);          /* NaN if it is missing */

#endif
