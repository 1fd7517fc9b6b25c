/* What verify prints of a configuration: its shape, and each fault. */
#ifndef VERIFY_REPORT_H
#define VERIFY_REPORT_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "verify_cases.h"

extern char about[1024];        /* the current configuration: its shape, groups, schedule */
extern char groups[256];        /* all groups of the program, on any rank: "dp=2,tp=4" */
extern int faults;              /* found in the current configuration */
extern int accesses;            /* beyond arrays, in all configurations */
extern int wrong;               /* configurations already found wrong; later ones print only their first lines */

void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));      /* counts and prints a fault */

/* Prints the program's first error lines, "11_mine: what", and one about traffic; if `drifted`, only those about
 * replicas that have drifted. */
void print_messages(const char *text, const Shape *s, bool drifted);

/* Prints what AddressSanitizer has found: the function and its line, and where the array was made. */
void print_access(const char *text);

cJSON *read_json(const char *name);             /* NULL: there is no such file, because the run ended early */
cJSON *ranks_of(const cJSON *report);
void read_groups(const cJSON *report);
void describe(const Shape *s, const cJSON *report);             /* to `about` */

#endif
