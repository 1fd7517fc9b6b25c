/* Operators of a mixture of experts (Shazeer et al. 2017; GShard, Lepikhin et al. 2020): each token chooses K of E
 * experts (here E counts all, in train.c those of one rank), and each expert has C slots per sequence. A choice takes
 * the next free slot of its expert; if there is none it is dropped, and adds nothing to the token. Sequences do not
 * compete, so what is dropped does not depend on the micro-batch or the rank. Earlier tokens come first, so later ones
 * have no effect on them. A sequence may be a span of one (--span): then B counts spans, of T tokens each. Conventions
 * are those of common/transformer/ops.h. */
#ifndef EXPERTS_H
#define EXPERTS_H

#include "../common/transformer/kernels.h"

typedef struct {
    Tensor probs;           /* (B, T, E) REAL   softmax of the router's logits */
    Tensor gates;           /* (B, T, K) REAL   factor of each chosen expert's output: its probability (Switch, Fedus et
                             *                  al. 2021); if K > 1, divided by the sum of the K (Mixtral, Jiang et al.
                             *                  2024) */
    Tensor choice;          /* (B, T, K) I32    the experts with the largest probabilities, largest first; of equal ones
                             *                  the first */
    Tensor slot;            /* (B, T, K) I32    the choice's row among the E*B*C slots, or -1: dropped */
    Tensor rows;            /* (E, B, C) I32    the token's row, b*T + t, in each slot, or -1: empty */
    Tensor load;            /* (B, E) REAL      choices of each expert, dropped ones too */
    double balance;         /* the weight of its loss; set by balance_forward */
} Routing;

/* On entry r->probs holds logits. Computes r's tensors. */
void route_forward(const Routing *r);
/* d_logits (B, T, E), d_gates (B, T, K). Includes the gradient of the loss that balance_forward added. Choices and
 * loads count as constants. */
void route_backward(Tensor d_logits, Tensor d_gates, const Routing *r);

/* loss (1) F64 += balance * (sum over b, e of load * E/(K*T) * (sum over t of probs)). With balance = alpha / tokens it
 * is the mean over sequences of Switch's auxiliary loss, alpha if all loads are equal. totals (E, 2) REAL += choices of
 * each expert, and how many of them were dropped. */
void balance_forward(Tensor loss /* += */, Tensor totals /* += */, Routing *r, double balance);

/* Copies each token's row of x (B*T, H) into its slots (E*B*C, H); empty slots become zeros. */
void dispatch_forward(Tensor slots, Tensor x, const Routing *r);
void dispatch_backward(Tensor d_x /* += */, Tensor d_slots, const Routing *r);

/* out (B*T, H) = x + sum over the token's choices of gate * the slot's row; slots (E*B*C, H). */
void combine_forward(Tensor out, Tensor x, Tensor slots, const Routing *r);
void combine_backward(Tensor d_slots, Tensor d_gates, Tensor d_out, Tensor slots, const Routing *r);

/* ---- what a backend provides, in experts_cpu.c or experts_cuda.cu; only experts.c calls the kernels ---- */
__typeof__(route_forward) route_forward_kernel; __typeof__(route_backward) route_backward_kernel;
__typeof__(balance_forward) balance_forward_kernel; __typeof__(combine_backward) combine_backward_kernel;
/* out = x + sum over a row's slots of gate * the slot's row; gates NONE: 1. out may be x. */
void combine_kernel(Tensor out, Tensor x, Tensor slots, Tensor gates, Tensor slot);
#endif
