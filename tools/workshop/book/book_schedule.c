/* "book schedule": draws a schedule of 06, or the lists that a reader has typed, a line per rank. */
#include <stdio.h>
#include <string.h>

#include "../../../06_pipeline_parallel/simulation.h"
#include "../../../common/base/error.h"
#include "book.h"

/* What an action's word says: "F0", or "B0.1" of model chunk 1. */
static Action action_of(const char *word, int r, int chunks)
{
    char kind = 0, rest;
    Action a = {0};

    if ((sscanf(word, "%c%d%c", &kind, &a.micro, &rest) != 2
         && sscanf(word, "%c%d.%d%c", &kind, &a.micro, &a.chunk, &rest) != 3) || !strchr("FBW", kind))
        fail("rank %d: expected words such as F0, B0 and W0%s, got '%s'", r, chunks > 1 ? ", F0.1 in chunk 1" : "",
             word);
    if (chunks > 1 && !strchr(word, '.'))
        fail("rank %d: in which model chunk is %s? Write %s.0 or %s.1", r, word, word, word);
    a.kind = kind == 'F' ? FORWARD : kind == 'B' ? BACKWARD : BACKWARD_WEIGHT;
    return a;
}

/* The list in a line of text. B is a whole backward, unless the line has its W: then it is BACKWARD_INPUT. */
static Schedule line_of(int r, int chunks, const char **text)
{
    Schedule s = {.list = host_alloc((strlen(*text) / 2 + 1) * sizeof(Action), "a list of actions")};

    for (const char *word; (word = next_word(text));)
        s.list[s.count++] = action_of(word, r, chunks);
    for (Action *w = s.list; w < s.list + s.count; w++)
        for (Action *b = s.list; b < s.list + s.count && w->kind == BACKWARD_WEIGHT; b++)
            if (b->kind == BACKWARD && b->micro == w->micro && b->chunk == w->chunk)
                b->kind = BACKWARD_INPUT;
    return s;
}

static void print_lists(const Simulation *s)
{
    for (int r = 0; r < s->pipe.p; r++)
        for (int i = 0; i < s->ranks[r].count; i++) {
            const Action a = s->ranks[r].list[i];
            printf("%c%d", "FBBW"[a.kind], a.micro);
            if (s->pipe.v_c > 1)
                printf(".%d", a.chunk);
            printf(i + 1 < s->ranks[r].count ? " " : "\n");
        }
}

void schedule(Given g)
{
    static const char *const kinds[] = {"afab", "1f1b", "interleaved", "zero-bubble", "zb-v", "dualpipe-v"};
    const char *kind = given_text(g, "kind", "1f1b"), *text = given_text(g, "text", NULL);
    Pipeline pipe = {.kind = -1u, .p = given_number(g, "ranks", 4, 1, 64),
                     .m = given_number(g, "micro-batches", 8, 1, 64), .v_c = given_number(g, "chunks", 1, 1, 64)};

    for (int k = AFAB; k <= DUALPIPE_V; k++)
        if (!strcmp(kind, kinds[k]))
            pipe.kind = k;
    if (pipe.kind == -1u)
        fail("kind: expected afab, 1f1b, interleaved, zero-bubble, zb-v or dualpipe-v, got '%s'", kind);
    pipe.layers = 2 * pipe.p * pipe.v_c;
    pipeline_check(&pipe);
    const Times times = times_of(given_text(g, "times", NULL));
    if (!text) {
        const Simulation s = simulate(pipe, times, stdout);
        if (given_text(g, "lists", NULL))
            print_lists(&s);
        else
            simulation_print(&s);
        return;
    }
    Schedule *lists = host_alloc(pipe.p * sizeof *lists, "lists");
    for (int r = 0; r < pipe.p; r++)
        lists[r] = line_of(r, pipe.v_c, &text);
    if (*text)
        fail("expected a line for each of the %d ranks, got more", pipe.p);
    const Simulation s = simulate_lists(pipe, lists, times, stdout);
    int most = 0;
    simulation_draw(&s, stdout);
    printf("bubble %.4f (idle over busy time)\n%s in flight at most, per rank:", s.bubble,
           pipe.v_c > 1 ? "model chunks" : "micro-batches");
    for (int r = 0; r < pipe.p; r++) {
        const int here = most_in_flight(lists[r], -1);
        printf(" %d", here);
        most = here > most ? here : most;
    }
    printf("\n");
    goal(g, "bubble", "bubble, in %:", 100 * s.bubble);
    goal(g, "in-flight", "in flight on a rank:", most);
}
