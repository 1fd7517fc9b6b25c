/* "book routing": 10's router for choices that a reader has typed. The first line of text is "capacity 1.25"; then a
 * line has the tokens of a rank, "tokens 01 20", each with the experts that it chooses, and one "experts 0 1" those
 * that the rank has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../10_expert_parallel/experts.h"
#include "../../../common/base/error.h"
#include "book.h"

enum { MOST = 8, TOKENS = 16 };         /* ranks and experts; tokens of a rank */

typedef struct {
    double capacity;
    int ranks, experts, top, count[MOST];               /* top: experts of a token; count: tokens of a rank */
    int home[MOST], chosen[MOST][TOKENS][MOST];         /* the rank of an expert; [rank][token][its experts] */
} Choices;

static int digit(const char *word, int at, int below, const char *what)
{
    if (word[at] < '0' || word[at] >= '0' + below)
        fail("%s: expected digits from 0 to %d, got '%s'", what, below - 1, word);
    return word[at] - '0';
}

static Choices choices_of(const char *text, int ranks, int experts, int top)
{
    Choices c = {.ranks = ranks, .experts = experts, .top = top};
    const char *word = next_word(&text);
    char *end = "";

    memset(c.home, 0xff, sizeof c.home);
    if (word && !strcmp(word, "capacity") && (word = next_word(&text)))
        c.capacity = strtod(word, &end);
    if (*end || !(c.capacity > 0 && c.capacity <= 8) || next_word(&text))
        fail("expected \"capacity 1.25\" in the first line, a factor up to 8");
    for (int r = 0; r < ranks; r++) {
        bool tokens = false;
        while ((word = next_word(&text))) {
            const int length = strlen(word);
            if (!strcmp(word, "tokens") || !strcmp(word, "experts")) {
                tokens = *word == 't';
            } else if (!tokens) {
                const int e = digit(word, 0, experts, "experts");
                if (length != 1)
                    fail("rank %d: expected spaces between experts, got '%s'", r, word);
                if (c.home[e] >= 0)
                    fail("rank %d: expert %d is already on rank %d", r, e, c.home[e]);
                c.home[e] = r;
            } else {
                if (length != top || c.count[r] == TOKENS)
                    fail("rank %d: expected at most %d tokens with %d expert%s each, got '%s'", r, TOKENS, top,
                         top > 1 ? "s" : "", word);
                for (int k = 0; k < top; k++) {
                    c.chosen[r][c.count[r]][k] = digit(word, k, experts, "tokens");
                    for (int j = 0; j < k; j++)
                        if (word[j] == word[k])
                            fail("rank %d: a token chooses different experts, got '%s'", r, word);
                }
                c.count[r]++;
            }
        }
        if (!c.count[r])
            fail("rank %d: expected a line such as \"experts 0 1 tokens 0 2 3\"", r);
        if (c.count[r] != c.count[0])
            fail("rank %d: expected as many tokens as on rank 0, %d, got %d", r, c.count[0], c.count[r]);
    }
    for (int e = 0; e < experts; e++)
        if (c.home[e] < 0)
            fail("expert %d is on no rank", e);
    return c;
}

static Tensor tensor_of(DType dtype, int64_t a, int64_t b, int64_t c)
{
    return (Tensor){host_alloc(a * b * c * 4, "the router"), "router", dtype, 3, {a, b, c}};
}

/* 10's router: each rank's tokens are a span of their own, and logits are larger for earlier choices. */
static Routing route(const Choices *c, int slots)
{
    const int T = c->count[0];
    Routing r = {.probs = tensor_of(REAL, c->ranks, T, c->experts), .gates = tensor_of(REAL, c->ranks, T, c->top),
                 .choice = tensor_of(I32, c->ranks, T, c->top), .slot = tensor_of(I32, c->ranks, T, c->top),
                 .rows = tensor_of(I32, c->experts, c->ranks, slots), .load = tensor_of(REAL, 1, c->ranks, c->experts)};

    for (int i = 0; i < c->ranks * T; i++)
        for (int k = 0; k < c->top; k++)
            ((real *)r.probs.data)[i * c->experts + c->chosen[i / T][i % T][k]] = c->top - k;
    route_forward_kernel(&r);
    return r;
}

/* The experts of token i as a set. */
static unsigned experts_of(const Choices *c, int i)
{
    unsigned set = 0;

    for (int k = 0; k < c->top; k++)
        set |= 1u << c->chosen[i / c->count[0]][i % c->count[0]][k];
    return set;
}

void routing(Given g)
{
    const int ranks = given_number(g, "ranks", 2, 1, MOST), experts = given_number(g, "experts", 4, 1, MOST);
    const int top = given_number(g, "top", 1, 1, experts);
    const Choices c = choices_of(given_text(g, "text", ""), ranks, experts, top);
    const int T = c.count[0], C = fmin(ceil(c.capacity * top * T / experts - 1e-9), T);        /* as in 10 */
    const Routing r = route(&c, C);
    const int32_t *rows = r.rows.data, *slot = r.slot.data;
    int dropped = 0, empty = 0, leave = 0, to[MOST][MOST] = {0};

    printf("Each expert has %d slot%s for each rank's tokens: capacity %g x %d choices / %d experts\n", C,
           C > 1 ? "s" : "", c.capacity, top * T, experts);
    for (int e = 0; e < experts; e++) {
        printf("expert %d of rank %d:", e, c.home[e]);
        for (int i = 0; i < ranks * C; i++) {
            const int row = rows[e * ranks * C + i];
            printf(i && i % C == 0 ? " | " : " ");
            printf(row < 0 ? "." : "%d", row);
            if (row >= 0)
                to[row / T][c.home[e]]++, leave += row / T != c.home[e];
            empty += row < 0;
        }
        printf("\n");
    }
    for (int i = 0; i < ranks * T * top; i++)
        if (slot[i] < 0)
            printf("%s token %d's expert %d", dropped++ ? "," : "dropped:", i / top,
                   ((int32_t *)r.choice.data)[i]);
    printf(dropped ? "\n" : "dropped: none\n");
    printf("empty: %d of %d slots\n", empty, experts * ranks * C);
    for (int i = 0; i < ranks; i++) {
        printf("from rank %d:", i);
        for (int j = 0; j < ranks; j++)
            printf(" %d", to[i][j]);
        printf("\n");
    }
    int changed = 0;
    if (given_text(g, "start", NULL)) {
        const Choices before = choices_of(given_text(g, "start", ""), ranks, experts, top);
        for (int i = 0; i < ranks * T; i++)
            changed += experts_of(&c, i) != experts_of(&before, i);
    }
    int each = 0;
    for (int i = 0; i < ranks; i++) {
        int here = 0;
        for (int e = 0; e < experts; e++)
            here += c.home[e] == i;
        each = here > each ? here : each;
    }
    goal(g, "each", "experts on a rank:", each);
    goal(g, "dropped", "choices that are dropped:", dropped);
    goal(g, "slots", "slots of an expert:", C);
    goal(g, "leave", "rows that go to another rank:", leave);
    goal(g, "changed", "tokens that choose differently:", changed);
}
