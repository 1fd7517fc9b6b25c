#include "llama.h"

#include <math.h>
#include <stdlib.h>

#include "../common/base/device.h"
#include "../common/base/error.h"
#include "../common/transformer/op_call.h"

void rmsnorm_forward(Tensor out, Tensor rstd, Tensor x, Tensor weight, double eps)
{
    OP_CALL(rmsnorm_forward_kernel(out, rstd, x, weight, eps), 0, "=out R,H; =rstd R REAL; x R,H; weight H", out, rstd,
            x, weight);
}

void rmsnorm_backward(Tensor d_x, Tensor d_weight, Tensor d_out, Tensor x, Tensor rstd, Tensor weight)
{
    OP_CALL(rmsnorm_backward_kernel(d_x, d_weight, d_out, x, rstd, weight), 0,
            "+d_x R,H; +d_weight H G; d_out R,H; x R,H; rstd R REAL; weight H", d_x, d_weight, d_out, x, rstd, weight);
}

/* What Llama 3's scaling makes of an angle per token; wavelengths are in tokens. */
static double scaled(double frequency, RopeScaling s)
{
    const double turns = s.original_seq * frequency / (2 * M_PI);       /* over the sequences of the first training */

    if (!s.factor || turns > s.high_freq_factor)
        return frequency;
    if (turns < s.low_freq_factor)
        return frequency / s.factor;
    const double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    return kept * frequency + (1 - kept) * frequency / s.factor;
}

void scaled_rope_table(Tensor rope, double theta, RopeScaling scaling)
{
    const int64_t T = rope.shape[0], D = tensor_width(rope);
    real *table = host_alloc(tensor_bytes(rope), "a rope table");

    OP_BEGIN(0, "=rope T,2*D REAL", rope);
    for (int64_t i = 0; i < D / 2; i++)
        for (int64_t t = 0; t < T; t++) {
            const double angle = t * scaled(pow(theta, -2.0 * i / D), scaling);
            table[t * D + i] = cos(angle);
            table[t * D + D / 2 + i] = sin(angle);
        }
    device_upload(rope.data, table, tensor_bytes(rope));
    free(table);
    op_end();
}

/* N: heads of q, k and v together; D: half a head */
#define OF_ROPE "+qkv B*T,N*2*D; rope T,2*D REAL"

void grouped_rope_forward(Tensor qkv, Tensor rope, int64_t kv_heads)
{
    OP_REQUIRE(tensor_width(qkv) > 2 * kv_heads * tensor_width(rope), OF_ROPE ", N > 2 * kv_heads", qkv, rope);
    OP_CALL(grouped_rope_kernel(qkv, rope, kv_heads, false), 0, OF_ROPE, qkv, rope);
}

void grouped_rope_backward(Tensor d_qkv, Tensor rope, int64_t kv_heads)
{
    OP_REQUIRE(tensor_width(d_qkv) > 2 * kv_heads * tensor_width(rope), OF_ROPE ", N > 2 * kv_heads", d_qkv, rope);
    OP_CALL(grouped_rope_kernel(d_qkv, rope, kv_heads, true), 0, OF_ROPE, d_qkv, rope);
}

/* Whether the width of qkv is that of A heads of q and twice K, a divisor of A. */
static bool is_grouped(Tensor out, Tensor probs, Tensor qkv)
{
    const int64_t A = probs.shape[1], D = A ? tensor_width(out) / A : 0, twice_K = D ? tensor_width(qkv) / D - A : 0;

    return twice_K > 0 && twice_K % 2 == 0 && A % (twice_K / 2) == 0;
}

void grouped_attention_forward(Tensor out, Tensor probs, Tensor qkv)
{
    OP_REQUIRE(is_grouped(out, probs, qkv), "qkv B*T,N*D with N = A + 2 * K, and K a divisor of A", out, probs, qkv);
    OP_CALL(grouped_attention_forward_kernel(out, probs, qkv), 4.0 * tensor_count(out) * probs.shape[2],
            "=out B*T,A*D REAL; =probs B,A,T,T REAL; qkv B*T,N*D REAL", out, probs, qkv);
}

void grouped_attention_backward(Tensor d_qkv, Tensor d_probs, Tensor d_out, Tensor qkv, Tensor probs)
{
    OP_REQUIRE(is_grouped(d_out, probs, qkv), "qkv B*T,N*D with N = A + 2 * K, and K a divisor of A", d_out, probs,
               qkv);
    OP_CALL(grouped_attention_backward_kernel(d_qkv, d_probs, d_out, qkv, probs),
            8.0 * tensor_count(d_out) * probs.shape[2],
            "=d_qkv B*T,N*D REAL; =d_probs B,A,T,T REAL; d_out B*T,A*D REAL; qkv B*T,N*D REAL; probs B,A,T,T REAL",
            d_qkv, d_probs, d_out, qkv, probs);
}

void swiglu_forward(Tensor out, Tensor gate_up)
{
    OP_CALL(swiglu_forward_kernel(out, gate_up), 0, "=out R,F; gate_up R,2*F", out, gate_up);
}

void swiglu_backward(Tensor d_gate_up, Tensor d_out, Tensor gate_up)
{
    OP_CALL(swiglu_backward_kernel(d_gate_up, d_out, gate_up), 0, "=d_gate_up R,2*F; d_out R,F; gate_up R,2*F",
            d_gate_up, d_out, gate_up);
}
