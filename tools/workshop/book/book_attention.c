/* "book attention": ring attention of 07 for sequence chunks that a reader has given to the ranks. A line of text has
 * the chunks of a rank. In step k a rank attends to the keys of the rank k before it: chunk by chunk, but for keys that
 * come after the queries, which the causal mask hides. */
#include <stdio.h>
#include <string.h>

#include "../../../common/base/error.h"
#include "book.h"

enum { MOST = 8, CHUNKS = 32 };         /* ranks; chunks of a sequence */

void attention(Given g)
{
    const int n = given_number(g, "ranks", 4, 1, MOST);
    const char *text = given_text(g, "text", "");
    int chunk[MOST][CHUNKS], count[MOST] = {0}, rank_of[CHUNKS], chunks = 0;
    double sum = 0, all = 0, busiest = 0, own[MOST] = {0};

    for (int r = 0; r < n; r++)
        for (const char *word; (word = next_word(&text)); chunks++) {
            int c = -1;
            char rest;
            if (sscanf(word, "%d%c", &c, &rest) != 1 || c < 0 || c >= CHUNKS)
                fail("rank %d: expected numbers of sequence chunks from 0 on, got '%s'", r, word);
            if (chunks == CHUNKS)
                fail("expected at most %d sequence chunks", CHUNKS);
            chunk[r][count[r]++] = c;
        }
    if (*text)
        fail("expected a line for each of the %d ranks, got more", n);
    if (given_text(g, "chunks", NULL))
        chunks = given_number(g, "chunks", 0, n, CHUNKS);
    memset(rank_of, 0xff, sizeof rank_of);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < count[r]; i++) {
            if (chunk[r][i] >= chunks)
                fail("rank %d: expected chunks 0 to %d, got %d", r, chunks - 1, chunk[r][i]);
            if (rank_of[chunk[r][i]] >= 0)
                fail("chunk %d is on rank %d and on rank %d", chunk[r][i], rank_of[chunk[r][i]], r);
            rank_of[chunk[r][i]] = r;
        }
    for (int c = 0; c < chunks; c++)
        if (rank_of[c] < 0)
            fail("chunk %d is on no rank", c);

    for (int query = 0; query < chunks; query++) {
        printf("query %-2d", query);
        for (int key = 0; key <= query; key++)
            printf(" %d:%d", rank_of[query], (rank_of[query] - rank_of[key] + n) % n + 1);
        printf("\n");
    }
    for (int step = 0; step < n; step++) {
        double longest = 0;
        printf("step %d", step + 1);
        for (int r = 0; r < n; r++) {
            const int from = (r - step + n) % n;
            double pairs = 0;
            for (int i = 0; i < count[r]; i++)
                for (int j = 0; j < count[from]; j++) {
                    const int key = chunk[from][j], query = chunk[r][i];
                    pairs += (key < query) + 0.5 * (key == query);
                }
            printf(" %g", pairs);
            longest = pairs > longest ? pairs : longest;
            own[r] += pairs, all += pairs;
        }
        printf("\n");
        sum += longest;
    }
    for (int r = 0; r < n; r++)
        busiest = own[r] > busiest ? own[r] : busiest;
    printf("query:key blocks %g; the busiest rank has %g; all steps, each as long as its busiest rank, %g of %g\n", all,
           busiest, sum, all / n);
    int most = 0;
    for (int r = 0; r < n; r++)
        most = count[r] > most ? count[r] : most;
    goal(g, "on-a-rank", "chunks on a rank:", most);
    goal(g, "blocks", "time of all steps, in blocks:", sum);
}
