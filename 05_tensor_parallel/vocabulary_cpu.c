#include "vocabulary.h"

#include <math.h>

#include "../common/transformer/cpu/kernel_cpu.h"

void cross_entropy_max_kernel(Tensor max, Tensor logits)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++)
        row(max, 0)[i] = largest_of(load(logits, i * width, width, 0), width);
}

void cross_entropy_sums_kernel(Tensor sums, Tensor logits, Tensor max, Tensor targets)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(logits, i * width, width, 0);
        const int32_t target = ids_of(targets)[i];
        row(sums, i)[0] = exp_sum(in, width, row(max, 0)[i]);
        row(sums, i)[1] = target < 0 ? 0 : in[target];
    }
}

void cross_entropy_loss_kernel(Tensor loss, Tensor lse, Tensor sums, Tensor max, double scale)
{
    const int64_t rows = tensor_rows(sums);
    double total = 0;

    for (int64_t i = 0; i < rows; i++) {
        const real log_sum = log(row(sums, i)[0]);
        row(lse, 0)[i] = row(max, 0)[i] + log_sum;
        total += (double)row(max, 0)[i] - row(sums, i)[1] + log_sum;
    }
    *(double *)loss.data += scale * total;
}

void ids_in_slice_kernel(Tensor out, Tensor ids, int64_t first, int64_t count)
{
    int32_t *to = out.data;

    for (int64_t i = 0; i < tensor_count(ids); i++) {
        const int32_t id = ids_of(ids)[i];
        to[i] = id >= first && id < first + count ? (int32_t)(id - first) : -1;
    }
}
