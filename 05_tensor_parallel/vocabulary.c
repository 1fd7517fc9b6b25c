#include "vocabulary.h"

#include "../common/transformer/op_call.h"

void cross_entropy_max(Tensor max, Tensor logits)
{
    OP_CALL(cross_entropy_max_kernel(max, logits), 0, "=max R REAL; logits R,V", max, logits);
}

void cross_entropy_sums(Tensor sums, Tensor logits, Tensor max, Tensor targets)
{
    OP_CALL(cross_entropy_sums_kernel(sums, logits, max, targets), 0,
            "=sums R,2 REAL; logits R,V; max R REAL; targets R I32", sums, logits, max, targets);
}

void cross_entropy_loss(Tensor loss, Tensor lse, Tensor sums, Tensor max, double scale)
{
    OP_CALL(cross_entropy_loss_kernel(loss, lse, sums, max, scale), 0,
            "+loss 1 F64; =lse R REAL; sums R,2 REAL; max R REAL", loss, lse, sums, max);
}

void ids_in_slice(Tensor out, Tensor ids, int64_t first, int64_t count)
{
    OP_CALL(ids_in_slice_kernel(out, ids, first, count), 0, "=out R I32; ids R I32", out, ids);
}
