#include "experts.h"

#include "../common/transformer/op_call.h"

void route_forward(const Routing *r)
{
    OP_REQUIRE(tensor_width(r->gates) <= tensor_width(r->probs), "gates B,T,K; probs B,T,E; K <= E", r->gates,
               r->probs);
    OP_CALL(route_forward_kernel(r), 0,
            "+probs B,T,E REAL; =gates B,T,K REAL; =choice B,T,K I32; =slot B,T,K I32; =rows E,B,C I32; =load B,E REAL",
            r->probs, r->gates, r->choice, r->slot, r->rows, r->load);
}

void route_backward(Tensor d_logits, Tensor d_gates, const Routing *r)
{
    OP_CALL(route_backward_kernel(d_logits, d_gates, r), 0,
            "=d_logits B,T,E REAL; d_gates B,T,K REAL; probs B,T,E REAL; gates B,T,K REAL; choice B,T,K I32; "
            "load B,E REAL", d_logits, d_gates, r->probs, r->gates, r->choice, r->load);
}

void balance_forward(Tensor loss, Tensor totals, Routing *r, double balance)
{
    r->balance = balance;
    OP_CALL(balance_forward_kernel(loss, totals, r, balance), 0,
            "+loss 1 F64; +totals E,2 REAL; probs B,T,E REAL; load B,E REAL", loss, totals, r->probs, r->load);
}

void dispatch_forward(Tensor slots, Tensor x, const Routing *r)
{
    OP_CALL(embedding_forward_kernel(slots, r->rows, x), 0,
            "=slots E*B*C,H; x B*T,H; rows E,B,C I32; slot B,T,K I32", slots, x, r->rows, r->slot);
}

void dispatch_backward(Tensor d_x, Tensor d_slots, const Routing *r)
{
    OP_CALL(combine_kernel(d_x, d_x, d_slots, NONE, r->slot), 0,
            "+d_x B*T,H; d_slots E*B*C,H; slot B,T,K I32; rows E,B,C I32", d_x, d_slots, r->slot, r->rows);
}

void combine_forward(Tensor out, Tensor x, Tensor slots, const Routing *r)
{
    OP_CALL(combine_kernel(out, x, slots, r->gates, r->slot), 0,
            "=out B*T,H; x B*T,H; slots E*B*C,H; gates B,T,K REAL; slot B,T,K I32; rows E,B,C I32",
            out, x, slots, r->gates, r->slot, r->rows);
}

void combine_backward(Tensor d_slots, Tensor d_gates, Tensor d_out, Tensor slots, const Routing *r)
{
    OP_CALL(combine_backward_kernel(d_slots, d_gates, d_out, slots, r), 0,
            "=d_slots E*B*C,H; =d_gates B,T,K REAL; d_out B*T,H; slots E*B*C,H; gates B,T,K REAL; slot B,T,K I32; "
            "rows E,B,C I32", d_slots, d_gates, d_out, slots, r->gates, r->slot, r->rows);
}
