/* The reference, and what verify compares with it: gradients, losses, the validation loss, the checkpoint, the sample.
 * Faults are printed (verify_report.h). */
#ifndef VERIFY_COMPARE_H
#define VERIFY_COMPARE_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "verify_cases.h"

/* Steps of the checkpoint from which runs start, and after it: two of the warm-up, two of the decay. After the second
 * there is an evaluation. */
enum { TRAINED = 3, STEPS = 4, EVALUATED = 5 };

extern const char *reference;   /* directory of the programs to compare with */
extern char farthest[256];      /* 16- and 8-bit types: the largest difference that rounding made; otherwise "" */
extern double rounding;         /* and the mean over all gradients; otherwise 0 */

const char *mixture(const Shape *s);            /* the options of a model of experts */

/* The checkpoint of a trained model of this shape, trained on first use; FAR: with large weights; INFINITE: with some
 * that are Inf. */
const char *checkpoint(const Shape *s, Kind kind);

/* What the program and the reference do in a case: the same steps, evaluations and samples, from one checkpoint. */
const char *task(const Case *c, const Shape *s);
bool evaluates(const Case *c);
bool samples(const Case *c);                    /* at its end */

/* Runs the reference, and compares the gradients of the first step, their loss and norm. ranks_agree: about the loss;
 * otherwise that of rank 0 is no evidence. Losses, norms and learning rates of all steps are compared once these
 * gradients are known to be right. */
bool compare_gradients_of(const Case *c, const Shape *s, int sequences, bool ranks_agree);
void compare_losses(const Case *c);
void compare_validation(const Case *c, const cJSON *report);
void compare_initial(const char *command, const Case *c, const Shape *s);       /* the weights of a run of no steps */
void compare_model(const cJSON *report);        /* its parameters, and FLOPs per token */
void compare_checkpoint(const Case *c, const Shape *s);
void compare_sample(char *text);                /* of the run's standard output */

bool near(double a, double b, double most);     /* whether |a - b| <= most |b| */
const char *saved_file(const char *directory, const char *name);
double saved_number(const char *directory, const char *name);   /* of the state that a run saved; NaN: it saved none */

/* Runs and compares a case whose gradients overflow (verify_overflow.c). */
void verify_overflow(const char *command, const Shape *s);

#endif
