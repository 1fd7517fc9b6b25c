#include "ops.h"

#include <math.h>
#include <stdlib.h>

#include "../base/device.h"
#include "../base/error.h"
#include "kernels.h"
#include "op_call.h"

/* ---- plain memory ---- */

void tensor_zero(Tensor t)
{
    OP_CALL(device_zero(t.data, tensor_bytes(t)), 0, "0t N ANY", t);
}

void tensor_copy(Tensor to, Tensor from)
{
    OP_REQUIRE(to.dtype == from.dtype, "both of one dtype", to, from);
    OP_CALL(device_copy(to.data, from.data, tensor_bytes(to)), 0, "=to N ANY; from N ANY", to, from);
}

double tensor_item(Tensor t)
{
    double x;
    real y;

    OP_BEGIN(0, t.dtype == F64 ? "t 1 F64" : "t 1 REAL", t);
    if (t.dtype == F64) {
        device_download(&x, t.data, sizeof x);
    } else {
        device_download(&y, t.data, sizeof y);
        x = y;
    }
    op_end();
    return x;
}

void tensor_convert(Tensor to, Tensor from)
{
    OP_CALL(tensor_convert_kernel(to, from), 0, "=to N STORED; from N STORED", to, from);
}

void tensor_scale(Tensor t, double factor)
{
    OP_CALL(tensor_scale_kernel(t, factor), 0, "+t N", t);
}

void tensor_add(Tensor to, Tensor from)
{
    OP_CALL(tensor_add_kernel(to, from), 0, "+to N REAL; from N", to, from);
}

/* ---- embedding, LayerNorm, linear ---- */

void embedding_forward(Tensor out, Tensor ids, Tensor weight)
{
    OP_CALL(embedding_forward_kernel(out, ids, weight), 0, "=out R,H; ids R I32; weight V,H", out, ids, weight);
}

void embedding_backward(Tensor d_weight, Tensor d_out, Tensor ids)
{
    OP_CALL(embedding_backward_kernel(d_weight, d_out, ids), 0,
            "+d_weight V,H G; d_out R,H; ids R I32", d_weight, d_out, ids);
}

void layernorm_forward(Tensor out, Tensor stats, Tensor x, Tensor weight, Tensor bias)
{
    OP_CALL(layernorm_forward_kernel(out, stats, x, weight, bias), 0,
            "=out R,H; =stats R,2 REAL; x R,H; weight H; bias H", out, stats, x, weight, bias);
}

void layernorm_backward(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x, Tensor stats, Tensor weight)
{
    OP_CALL(layernorm_backward_kernel(d_x, d_weight, d_bias, d_out, x, stats, weight), 0,
            "+d_x R,H; +d_weight H G; +d_bias H G; d_out R,H; x R,H; stats R,2 REAL; weight H",
            d_x, d_weight, d_bias, d_out, x, stats, weight);
}

void linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    OP_CALL(linear_forward_kernel(out, x, weight, bias), 2.0 * tensor_count(out) * tensor_width(x),
            "=out R,M; x R,K; weight M,K; ?bias M", out, x, weight, bias);
}

void linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight)
{
    OP_CALL(linear_backward_input_kernel(d_x, d_out, weight), 2.0 * tensor_count(d_out) * tensor_width(d_x),
            "=d_x R,K; d_out R,M; weight M,K", d_x, d_out, weight);
}

void linear_backward_weight(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    OP_CALL(linear_backward_weight_kernel(d_weight, d_bias, d_out, x), 2.0 * tensor_count(d_out) * tensor_width(x),
            "+d_weight M,K G; +?d_bias M G; d_out R,M; x R,K", d_weight, d_bias, d_out, x);
}

/* ---- rotary positions ---- */

/* The table is computed on the host, in double, in any build. In rules of rope, D is half a head. */
void rope_table(Tensor rope, int64_t first)
{
    const int64_t T = rope.shape[0], D = tensor_width(rope);
    real *table = host_alloc(tensor_bytes(rope), "a rope table");

    OP_BEGIN(0, "=rope T,2*D REAL", rope);
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < D / 2; i++) {
            const double angle = (first + t) * pow(10000, -2.0 * i / D);
            table[t * D + i] = cos(angle);
            table[t * D + D / 2 + i] = sin(angle);
        }
    device_upload(rope.data, table, tensor_bytes(rope));
    free(table);
    op_end();
}

void rope_forward(Tensor qkv, Tensor rope)
{
    OP_CALL(rope_kernel(qkv, rope, false), 0, "+qkv B*T,3*A*2*D; rope T,2*D REAL", qkv, rope);
}

void rope_backward(Tensor d_qkv, Tensor rope)
{
    OP_CALL(rope_kernel(d_qkv, rope, true), 0, "+d_qkv B*T,3*A*2*D; rope T,2*D REAL", d_qkv, rope);
}

/* ---- attention ---- */

void attention_forward(Tensor out, Tensor probs, Tensor qkv)
{
    OP_CALL(attention_forward_kernel(out, probs, qkv), 4.0 * tensor_count(out) * probs.shape[2],
            "=out B*T,A*D; =probs B,A,T,T; qkv B*T,3*A*D", out, probs, qkv);
}

void attention_backward(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    OP_CALL(attention_backward_kernel(d_qkv, d_probs, d_out, qkv, probs), 8.0 * tensor_count(d_out) * probs.shape[2],
            "=d_qkv B*T,3*A*D; =d_probs B,A,T,T; d_out B*T,A*D; qkv B*T,3*A*D; probs B,A,T,T",
            d_qkv, d_probs, d_out, qkv, probs);
}

/* ---- GELU, residual, cross-entropy ---- */

void gelu_forward(Tensor out, Tensor x)
{
    OP_CALL(gelu_forward_kernel(out, x), 0, "=out R,F; x R,F", out, x);
}

void gelu_backward(Tensor d_x, Tensor d_out, Tensor x)
{
    OP_CALL(gelu_backward_kernel(d_x, d_out, x), 0, "=d_x R,F; d_out R,F; x R,F", d_x, d_out, x);
}

void residual_forward(Tensor out, Tensor x, Tensor branch, Tensor bias)
{
    OP_CALL(residual_forward_kernel(out, x, branch, bias), 0,
            "=out R,H; x R,H; branch R,H; ?bias H", out, x, branch, bias);
}

void residual_backward(Tensor d_bias, Tensor d_out)
{
    OP_CALL(column_sums_kernel(d_bias, d_out), 0, "+d_bias H G; d_out R,H", d_bias, d_out);
}

void cross_entropy_forward(Tensor loss, Tensor lse, Tensor logits, Tensor targets, double scale)
{
    OP_CALL(cross_entropy_forward_kernel(loss, lse, logits, targets, scale), 0,
            "+loss 1 F64; =lse R REAL; logits R,V; targets R I32", loss, lse, logits, targets);
}

void cross_entropy_backward(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale)
{
    OP_CALL(cross_entropy_backward_kernel(d_logits, logits, lse, targets, scale), 0,
            "=d_logits R,V; logits R,V; lse R REAL; targets R I32", d_logits, logits, lse, targets);
}

/* ---- for the optimizer ---- */

void adamw_update(Tensor params, Tensor copy, Tensor m, Tensor v, Tensor gradients, AdamWArguments a)
{
    OP_CALL(adamw_update_kernel(params, copy, m, v, gradients, a), 0,
            "+params N STORED; =?copy N STORED; +m N REAL; +v N REAL; gradients N G; ?scale 1 F64",
            params, copy, m, v, gradients, a.scale);
}

void square_sum_into(Tensor sum, const Tensor *list, int count)
{
    OP_BEGIN(0, "=sum 1 F64", sum);
    for (int i = 0; i < count; i++)
        op_reads("t N G", list[i]);
    square_sum_into_kernel(sum, list, count);
    op_end();
}
