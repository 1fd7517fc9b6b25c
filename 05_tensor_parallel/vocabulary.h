/* Cross-entropy over slices of the vocabulary, for logits (R, V) of one slice:
 *   1. cross_entropy_max: row maxima (R); all-reduce them with MAX;
 *   2. cross_entropy_sums: partial sums (R, 2) of exp(logit - max) and of the target's logit (0 if the target is -1,
 *      in another rank's slice); all-reduce them with SUM;
 *   3. cross_entropy_loss: lse and loss as cross_entropy_forward's, on every rank.
 * Backward is cross_entropy_backward on the slice. All REAL but logits, loss, targets and ids. Conventions are those of
 * common/transformer/ops.h. */
#ifndef VOCABULARY_H
#define VOCABULARY_H

#include "../common/transformer/kernels.h"

void cross_entropy_max(Tensor max, Tensor logits);
void cross_entropy_sums(Tensor sums, Tensor logits, Tensor max, Tensor targets);
void cross_entropy_loss(Tensor loss /* += */, Tensor lse, Tensor sums, Tensor max, double scale);
void ids_in_slice(Tensor out, Tensor ids, int64_t first, int64_t count);        /* id - first, or -1 outside; I32 */

/* ---- what a backend provides, in vocabulary_cpu.c or vocabulary_cuda.cu; only vocabulary.c calls the kernels ---- */
__typeof__(cross_entropy_max) cross_entropy_max_kernel; __typeof__(cross_entropy_sums) cross_entropy_sums_kernel;
__typeof__(cross_entropy_loss) cross_entropy_loss_kernel; __typeof__(ids_in_slice) ids_in_slice_kernel;
#endif
