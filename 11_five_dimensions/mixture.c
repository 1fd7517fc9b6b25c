/* ep: the mixture of experts of 10, in place of the MLP. Here the ranks of a pipeline stage are what all ranks are in
 * 10: with sequence parallelism each of them has other rows. So two all-to-alls replace f and g, and the operators of
 * 10 get the local rows as R/G spans of G tokens, where there they get sequences.
 */
#include "combined.h"

static Tensor slots;                /* (E, P, H)  rows or outputs that leave; outputs' gradients that arrive */
static Tensor logits;               /* (R, e)     the router's, and their gradients, as it computes them: in dtype */
static Tensor d_gates, d_logits;    /* (R/G, G, K), (R/G, G, e)  in REAL */
static Tensor balance_loss;         /* (1)        of the step, accumulated over its micro-batches on the device */
static Tensor totals;               /* (L, e, 2)  of the step: choices of each expert, and how many were dropped */
static double balance_of_step, dropped, busiest, idlest;        /* columns of --metrics */

/* Starts to exchange the slots of local expert j, as in 10: expert j * ep + r is local expert j of rank r. */
static Request *exchange(Tensor out, Tensor in, int64_t j)
{
    return comm_start_all_to_all(ep, tensor_range(out, j, 1), tensor_range(in, j, 1));
}

/* out = x + the sum of gate * expert(ln2) over each token's experts. Slots of later experts arrive, and outputs of
 * earlier ones return, while an expert computes. */
void experts_forward(const BlockParams *w, BlockActs *a, Tensor out, Tensor x)
{
    const Routing *r = &a->routing;
    Request *arriving[E], *returning[E];

    linear_forward(logits, a->ln2, w->router, NONE);
    tensor_convert(r->probs, logits);                       /* in place, route_forward makes them probabilities */
    route_forward(r);
    dispatch_forward(slots, a->ln2, r);
    for (int64_t j = 0; j < E; j++)
        arriving[j] = exchange(a->in, slots, j);
    for (int64_t j = 0; j < E; j++) {
        const ExpertParams *e = &w->experts[j * comm_size(ep) + comm_rank(ep)];
        Tensor in = tensor_range(a->in, j, 1), up = tensor_range(a->up, j, 1), gelu = tensor_range(a->gelu, j, 1);
        comm_wait(&arriving[j]);
        linear_forward(up, in, e->up_weight, e->up_bias);
        gelu_forward(gelu, up);
        linear_forward(tensor_range(slots, j, 1), gelu, e->down_weight, e->down_bias);  /* over rows already sent */
        returning[j] = exchange(a->returned, slots, j);
    }
    for (int64_t j = 0; j < E; j++)
        comm_wait(&returning[j]);
    combine_forward(out, x, a->returned, r);
}

/* Computes d->ln2 from d_x, which stays as it is, as the residual stream's gradient. Gradients of outputs, d->returned,
 * arrive in slots; gradients of rows, d->in, return into d->returned. All are whole, no partial sums: tp adds nothing
 * up. */
void experts_backward(const BlockParams *w, const BlockParams *g, BlockActs *a, BlockActs *d, Tensor d_x)
{
    const Routing *r = &a->routing;
    Request *arriving[E], *returning[E];

    combine_backward(d->returned, d_gates, d_x, a->returned, r);
    for (int64_t j = 0; j < E; j++)
        arriving[j] = exchange(slots, d->returned, j);
    route_backward(d_logits, d_gates, r);
    tensor_convert(logits, d_logits);
    linear_backward_input(d->ln2, logits, w->router);
    linear_backward_weight(g->router, NONE, logits, a->ln2);
    for (int64_t j = 0; j < E; j++) {
        const ExpertParams *e = &w->experts[j * comm_size(ep) + comm_rank(ep)];
        const ExpertParams *d_e = &g->experts[j * comm_size(ep) + comm_rank(ep)];
        Tensor d_out = tensor_range(slots, j, 1), d_gelu = tensor_range(d->gelu, j, 1);
        Tensor d_up = tensor_range(d->up, j, 1), d_in = tensor_range(d->in, j, 1);
        comm_wait(&arriving[j]);
        linear_backward_input(d_gelu, d_out, e->down_weight);
        gelu_backward(d_up, d_gelu, tensor_range(a->up, j, 1));
        linear_backward_input(d_in, d_up, e->up_weight);
        returning[j] = exchange(d->returned, d->in, j);
        linear_backward_weight(d_e->down_weight, d_e->down_bias, d_out, tensor_range(a->gelu, j, 1));
        linear_backward_weight(d_e->up_weight, d_e->up_bias, d_up, tensor_range(a->in, j, 1));
    }
    for (int64_t j = 0; j < E; j++)
        comm_wait(&returning[j]);
    dispatch_backward(d->ln2, d->returned, r);
}

void balance_begin(void)
{
    tensor_zero(balance_loss);
    tensor_zero(totals);
}

/* Adds the balance loss and the loads of layer l in one micro-batch. experts_forward does not, because recomputation
 * calls it again. */
void balance_add(int l, Routing *r, double scale)
{
    balance_forward(balance_loss, tensor_range(totals, l, 1), r, balance * scale);
}

/* The step's balance loss and loads: what fraction of choices was dropped; the largest and the smallest load of an
 * expert, as a multiple of the even share. All ranks add to them, those of tp too: they come from local rows, unlike
 * the loss, which the ranks of tp share. */
void count_loads(void)
{
    const int64_t n = L * options.config.experts;
    real (*total)[2] = calloc(n, sizeof *total);
    double choices = 0, lost = 0, most = 0, least = INFINITY;

    balance_of_step = comm_sum(world, tensor_item(balance_loss));
    comm_all_reduce(world, totals, SUM);
    tensor_to_host(*total, totals);
    for (int64_t i = 0; i < n; i++) {
        choices += total[i][0], lost += total[i][1];
        most = fmax(most, total[i][0]), least = fmin(least, total[i][0]);
    }
    dropped = lost / choices, busiest = most * n / choices, idlest = least * n / choices;
    free(total);
}

static Routing routing_create(void)
{
    const int64_t e = options.config.experts;

    return (Routing){.probs = tensor_create(MEM_ACTIVATIONS, REAL, "router_probs", shape(R / G, G, e)),
                     .gates = tensor_create(MEM_ACTIVATIONS, REAL, "gates", shape(R / G, G, K)),
                     .choice = tensor_create(MEM_ACTIVATIONS, I32, "choice", shape(R / G, G, K)),
                     .slot = tensor_create(MEM_ACTIVATIONS, I32, "slot", shape(R / G, G, K)),
                     .rows = tensor_create(MEM_ACTIVATIONS, I32, "rows", shape(e, R / G, Q)),
                     .load = tensor_create(MEM_ACTIVATIONS, REAL, "load", shape(R / G, e))};
}

/* shared: activations that are not saved for backward are in the buffers of `first`, which every block overwrites. */
BlockActs block_acts_create(Category category, BlockActs first, bool shared)
{
    BlockActs a = first;

    if (!shared || options.recompute != RECOMPUTE_FULL) {
        a.ln1 = tensor_create(category, dtype, "ln1", shape(R, H));
        a.ln1_stats = tensor_create(category, REAL, "ln1_stats", shape(R, 2));
        a.qkv = tensor_create(category, dtype, "qkv", shape(B, T, 3 * A * D));
        a.lse = tensor_create(category, REAL, "attention_lse", shape(B * T * A));
        a.attn_out = tensor_create(category, dtype, "attn_out", shape(B, T, A * D));
        a.mid = tensor_create(category, dtype, "mid", shape(R, H));
        a.ln2 = tensor_create(category, dtype, "ln2", shape(R, H));
        a.ln2_stats = tensor_create(category, REAL, "ln2_stats", shape(R, 2));
        a.routing = category == MEM_ACTIVATIONS ? routing_create() : (Routing){0};
        a.in = tensor_create(category, dtype, "in", shape(E, P, H));
        a.up = tensor_create(category, dtype, "up", shape(E, P, F));
        a.gelu = tensor_create(category, dtype, "gelu", shape(E, P, F));
        a.returned = tensor_create(category, dtype, "returned", shape(E, P, H));
    }
    if (!shared)
        a.branch = tensor_create(MEM_WORKSPACE, dtype, "branch", shape(R, H));
    return a;
}

void mixture_create(void)
{
    const int64_t e = options.config.experts;

    slots = tensor_create(MEM_COMMUNICATION, dtype, "slots", shape(E, P, H));
    logits = tensor_create(MEM_WORKSPACE, dtype, "router_logits", shape(R, e));
    d_gates = tensor_create(MEM_WORKSPACE, REAL, "d_gates", shape(R / G, G, K));
    d_logits = tensor_create(MEM_WORKSPACE, REAL, "d_logits", shape(R / G, G, e));
    balance_loss = tensor_create(MEM_WORKSPACE, F64, "balance_loss", shape(1));
    totals = tensor_create(MEM_WORKSPACE, REAL, "totals", shape(L, e, 2));
    run_register_state("balance_loss", &balance_of_step);
    run_register_state("dropped", &dropped);
    run_register_state("busiest", &busiest);
    run_register_state("idlest", &idlest);
}
