/* "book collective": what each rank holds after each step of an algorithm of 00, or of sends that a reader has typed.
 *
 * A line of text is a step, a word of it a message: "0>1" sends the tensor of rank 0 to rank 1, which overwrites its
 * own, "0+1" adds it there, and "0+1:23" does so with shards 2 and 3 alone. In a step a rank sends one message and
 * receives one. */
#include <stdio.h>
#include <string.h>

#define main collectives_main           /* 00's algorithms as they are; what its main needs is not linked */
#include "../../../00_collectives/collectives.c"
#undef main
#include "book.h"

enum { MOST = 8 };                      /* ranks, and shards of a tensor */

/* ---- What a rank does in an algorithm: its calls are recorded instead of made ---- */

typedef struct { int from, to, first, count, received, received_count; bool adds; } Hop;
static Hop hops[MOST][4 * MOST];
static int hop_count[MOST], this_rank, ranks = 1;
static real elements[MOST], received[MOST];             /* of t and of inbox: an element is a shard */
Comm *world;

int comm_rank(const Comm *c)
{
    (void)c;
    return this_rank;
}

int comm_size(const Comm *c)
{
    (void)c;
    return ranks;
}

Request *comm_start_exchange(Comm *c, Tensor out, int from, Tensor in, int to)
{
    (void)c;
    hops[this_rank][hop_count[this_rank]++] = (Hop){
        .from = from, .to = to, .first = in.data ? (real *)in.data - elements : 0, .count = tensor_count(in),
        .received = out.data ? (real *)out.data - elements : 0, .received_count = tensor_count(out)};
    return NULL;
}

void comm_complete(Request *request)
{
    (void)request;
}

void tensor_add(Tensor to, Tensor from)
{
    Hop *last = &hops[this_rank][hop_count[this_rank] - 1];

    (void)from;
    last->adds = true;
    last->received = (real *)to.data - elements;
}

static const struct {
    const char *name, *what;
    void (*run)(Comm *, Tensor);
} algorithms[] = {
    {"ring_reduce_scatter", "reduce-scatter", ring_reduce_scatter}, {"ring_all_gather", "all-gather", ring_all_gather},
    {"ring_all_reduce", "all-reduce", ring_all_reduce}, {"tree_broadcast", "broadcast", tree_broadcast},
    {"tree_reduce", "reduce", tree_reduce}, {"tree_all_reduce", "all-reduce", tree_all_reduce},
    {"doubling_all_reduce", "all-reduce", doubling_all_reduce}, {0}};

/* Writes the algorithm's messages, step by step. A rank's hop is in the first step in which its partners are at theirs,
 * too. */
static void write_steps(FILE *to)
{
    int done[MOST] = {0};

    for (bool moved = true; moved;) {
        bool ready[MOST], changed = true;
        moved = false;
        for (int r = 0; r < ranks; r++)
            ready[r] = done[r] < hop_count[r];
        while (changed) {
            changed = false;
            for (int r = 0; r < ranks; r++) {
                const Hop *h = &hops[r][done[r]];
                if (ready[r] && ((h->to >= 0 && (!ready[h->to] || hops[h->to][done[h->to]].from != r))
                                 || (h->from >= 0 && (!ready[h->from] || hops[h->from][done[h->from]].to != r))))
                    ready[r] = false, changed = true;
            }
        }
        for (int r = 0; r < ranks; r++)
            if (ready[r] && hops[r][done[r]].to >= 0) {
                const Hop *h = &hops[r][done[r]];
                const char how = hops[h->to][done[h->to]].adds ? '+' : '>';
                fprintf(to, "%s%d%c%d", moved ? " " : "", r, how, h->to);
                for (int i = 0; i < h->count && h->count < ranks; i++)
                    fprintf(to, "%s%d", i ? "" : ":", h->first + i);
                moved = true;
            }
        for (int r = 0; r < ranks; r++)
            done[r] += ready[r];
        if (moved)
            fprintf(to, "\n");
    }
}

/* ---- What each rank holds: of each shard, how often each rank's contribution ---- */

typedef unsigned char Held[MOST][MOST][MOST];           /* [rank][shard][contribution] */

static const char *letters(const unsigned char *shard)
{
    static char text[64];
    int length = 0;

    for (int i = 0; i < ranks; i++)
        for (int k = 0; k < shard[i] && length < 60; k++)
            text[length++] = 'a' + i;
    text[length] = 0;
    return length ? text : ".";
}

static void print_held(Held held)
{
    for (int r = 0; r < ranks; r++) {
        printf("rank %d ", r);
        for (int s = 0; s < ranks; s++)
            printf(" %s", letters(held[r][s]));
        printf("\n");
    }
}

/* What rank r's shard s has of rank i's contribution, before the first step or (at_end) after the last; -1: any. */
static int expected(const char *what, bool at_end, int r, int s, int i)
{
    if (!strcmp(what, "broadcast"))
        return i == 0 && (r == 0 || at_end);
    if (!strcmp(what, "all-gather"))
        return i == s && (r == s || at_end);
    if (!at_end)
        return r == i;
    return (!strcmp(what, "reduce-scatter") && r != s) || (!strcmp(what, "reduce") && r) ? -1 : 1;
}

/* Prints how many shards are not yet what they have to be, and the first of them. */
static bool print_wrong(Held held, const char *what)
{
    int wrong = 0, first_rank = 0, first_shard = 0;
    unsigned char right[MOST] = {0};

    for (int r = ranks - 1; r >= 0; r--)
        for (int s = ranks - 1; s >= 0; s--) {
            bool same = true;
            for (int i = 0; i < ranks; i++)
                same &= expected(what, true, r, s, i) < 0 || expected(what, true, r, s, i) == held[r][s][i];
            if (!same) {
                wrong++, first_rank = r, first_shard = s;
                for (int i = 0; i < ranks; i++)
                    right[i] = expected(what, true, r, s, i);
            }
        }
    if (wrong) {
        printf("shard %d of rank %d holds %s, ", first_shard, first_rank, letters(held[first_rank][first_shard]));
        printf("and should hold %s at the end\n", letters(right));
    }
    printf("goal: wrong shards: %d (at most 0): %s\n", wrong, wrong ? "not yet" : "reached");
    return wrong;
}

/* Performs a message of step k: from `before`, what is held when the step begins, into `after`. */
static void perform(const char *word, int k, Held before, Held after, bool *sends, bool *receives,
                    int sent[MOST][MOST])
{
    int from = -1, to = -1, at = 0;
    char how = 0;

    if (sscanf(word, "%d%c%d%n", &from, &how, &to, &at) != 3 || !strchr(">+", how)
        || (word[at] && (word[at] != ':' || !word[at + 1])))
        fail("step %d: expected words such as 0>1, 0+1 or 0+1:23, got '%s'", k, word);
    if (from < 0 || from >= ranks || to < 0 || to >= ranks || from == to)
        fail("step %d: %s: expected two of the ranks 0 to %d", k, word, ranks - 1);
    if (sends[from] || receives[to])
        fail("step %d: %s: rank %d already %s in this step", k, word, sends[from] ? from : to,
             sends[from] ? "sends" : "receives");
    sends[from] = receives[to] = true;
    for (int s = 0; s < ranks; s++) {
        if (word[at] && !strchr(word + at, '0' + s))
            continue;
        if (!strcmp(letters(before[from][s]), "."))
            fail("step %d: %s: rank %d has nothing in shard %d when this step begins", k, word, from, s);
        for (int i = 0; i < ranks; i++)                     /* more than seven times is as wrong as seven */
            after[to][s][i] = fmin(before[from][s][i] + (how == '+' ? after[to][s][i] : 0), 7);
        sent[from][to]++;
    }
    for (const char *c = word + at + (word[at] == ':'); *c; c++)
        if (*c < '0' || *c >= '0' + ranks)
            fail("step %d: %s: expected shards from 0 to %d", k, word, ranks - 1);
}

void collective(Given g)
{
    const char *algorithm = given_text(g, "algorithm", NULL), *what = given_text(g, "what", "all-reduce");
    const char *text = given_text(g, "text", "");
    char *own = NULL;
    Held held = {0};
    int steps = 0, sent[MOST][MOST] = {0}, most = 0, most_on_link = 0;    /* sent: [from][to], in shards */

    ranks = given_number(g, "ranks", 4, 2, MOST);
    if (algorithm) {
        int a = 0;
        size_t size;
        while (algorithms[a].name && strcmp(algorithms[a].name, algorithm))
            a++;
        if (!algorithms[a].name)
            fail("algorithm: expected ring_all_reduce or another of 00's algorithms, got '%s'", algorithm);
        what = algorithms[a].what;
        inbox = (Tensor){.data = received, .dtype = REAL, .dims = 1, .shape = {ranks}};
        for (this_rank = 0; this_rank < ranks; this_rank++)
            algorithms[a].run(world, (Tensor){.data = elements, .dtype = REAL, .dims = 1, .shape = {ranks}});
        FILE *to = open_memstream(&own, &size);
        write_steps(to);
        fclose(to);
        text = own;
        if (given_text(g, "lists", NULL)) {
            printf("%s", text);
            return;
        }
    }
    for (int r = 0; r < ranks; r++)
        for (int s = 0; s < ranks; s++)
            for (int i = 0; i < ranks; i++)
                held[r][s][i] = expected(what, false, r, s, i);
    printf("step 0\n");
    print_held(held);
    while (*text) {
        bool sends[MOST] = {false}, receives[MOST] = {false};
        Held before;
        const int length = strcspn(text, "\n");
        memcpy(before, held, sizeof held);
        steps++;
        char line[length + 1];
        snprintf(line, sizeof line, "%.*s", length, text);
        for (const char *word; (word = next_word(&text));)
            perform(word, steps, before, held, sends, receives, sent);
        printf("step %d: %s\n", steps, line);
        print_held(held);
    }
    printf("steps %d; sent, in tensors:", steps);
    for (int r = 0; r < ranks; r++) {
        int all = 0;
        for (int to = 0; to < ranks; to++) {
            all += sent[r][to];
            most_on_link = sent[r][to] > most_on_link ? sent[r][to] : most_on_link;
        }
        printf(" %.4g", (double)all / ranks);
        most = all > most ? all : most;
    }
    printf("; on one link at most %.4g\n", (double)most_on_link / ranks);
    if (print_wrong(held, what))
        return;
    goal(g, "steps", "steps:", steps);
    goal(g, "sent", "tensors that a rank sends:", (double)most / ranks);
}
