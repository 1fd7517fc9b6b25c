/* make sweep STAGE=05 NP="1 2 4 8" ARGS="...": runs a program on several numbers of ranks, a few steps each. Prints a
 * table of speed, memory and traffic, and writes it as CSV and as a figure to build/sweep. All numbers come from the
 * program's own --metrics and --report.
 *
 *   sweep BACKEND PROGRAM "1 2 4 8" [OPTIONS OF THE PROGRAM]
 */
#include <cjson/cJSON.h>
#include <err.h>
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../common/base/print.h"
#include "process.h"

/* Eight ranks divide its layers, heads and sequences, and 16 micro-batches fill a pipeline of eight. One thread per
 * rank: otherwise a single rank would use all cores. A rank that waits longer than the timeout ends its run. */
#define DEFAULTS "--layers 8 --hidden 128 --heads 8 --vocab 256 --seq 64 --micro-batch 1 --accumulate 16 --threads 1 " \
                 "--steps 5 --timeout 60"

enum { MOST_ROWS = 64, MOST_RANKS = 1024 };
static const double MOST_LATE = 0.05;   /* largest share of a step that may exceed the simulated time */

/* The columns. tokens: per step, of all ranks; bytes: of the rank with most; seconds: per step, without the first;
 * shares of a step: means over the ranks; late: the largest share of a rank's step beyond the time of --pretend; bubble
 * of a pipeline: idle over busy time, the mean over the ranks. NAN: unknown. */
enum { TOKENS, RATE, PEAK, PLAYBOOK, SENT, SECONDS, SPEED_UP, EFFICIENCY, MFU, COMPUTING, WAITING, LATE, BUBBLE,
       FORMULA, COLUMNS };
static const char *const names[COLUMNS] = {
    "tokens", "tokens/s", "peak_bytes", "playbook", "sent_bytes", "seconds", "speedup", "efficiency", "mfu",
    "computing", "waiting", "late", "bubble", "formula"};

typedef struct {
    int ranks;
    char why[256];                      /* the error of a run that failed */
    double v[COLUMNS];
} Row;

static Row rows[MOST_ROWS];
static int row_count;
static const Row *first = rows;         /* the first run that succeeded */
static const char *program;
static char command[8192];
static char pretend[64];                /* as in the reports; "": times are measured */

/* ---- The command line ---- */

static void take_ranks(const char *list)
{
    char *words = strdup(list), *end;

    for (char *word = strtok(words, " ,"); word; word = strtok(NULL, " ,")) {
        const long n = strtol(word, &end, 10);
        if (*end || n < 1 || n > MOST_RANKS || row_count == MOST_ROWS)
            errx(2, "NP=\"%s\": expected at most %d numbers of ranks from 1 to %d, such as NP=\"1 2 4 8\", got '%s'",
                 list, MOST_ROWS, MOST_RANKS, word);
        rows[row_count++].ranks = n;
    }
    if (!row_count)
        errx(2, "NP: expected numbers of ranks, such as NP=\"1 2 4 8\", got nothing");
    free(words);
}

/* ARGS come last, so that they override the defaults. */
static void make_command(const char *backend, char **words)
{
    size_t at = snprintf(command, sizeof command, BUILD "/%s/%s " DEFAULTS, backend, program);

    for (; *words; words++) {
        const char *quote = strchr(*words, ' ') || !**words ? "'" : "";
        at += snprintf(command + at, sizeof command - at, " %s%s%s", quote, *words, quote);
        if (at >= sizeof command)
            errx(2, "ARGS: expected at most %zu characters", sizeof command / 2);
    }
}

/* ---- One run ---- */

static double number(const cJSON *in, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(in, name);

    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static double sum(const cJSON *array, const char *name)         /* of the entries that have it */
{
    const cJSON *item;
    double all = 0;

    cJSON_ArrayForEach(item, array)
        all += cJSON_HasObjectItem(item, name) ? number(item, name) : 0;
    return all;
}

/* Takes the program's own error line, without the launcher's lines around it. */
static void take_reason(Row *row, Result r)
{
    const char *line = strstr(r.err, format_text("%s: ", program));

    line = line ? line + strlen(program) + 2 : r.err + strspn(r.err, "\n");
    snprintf(row->why, sizeof row->why, "%.*s", (int)strcspn(line, "\n"), line);
    if (!*line)
        snprintf(row->why, sizeof row->why, "the run ended with status %d and printed no error", r.status);
}

/* One rank's entry of the report. `rate`: of the device, in FLOP/s. */
static void take_rank(Row *row, const cJSON *rank, double rate)
{
    const cJSON *memory = cJSON_GetObjectItem(rank, "memory"), *total = cJSON_GetObjectItem(memory, "total");
    const cJSON *time = cJSON_GetObjectItem(rank, "time");
    const double seconds = number(time, "seconds"), steps = number(time, "steps");
    const double waiting = number(time, "waiting") / seconds;
    const double simulated = sum(cJSON_GetObjectItem(rank, "operators"), "flops") / rate / seconds;
    double *v = row->v;

    v[SECONDS] = fmax(v[SECONDS], seconds / steps);
    v[COMPUTING] += number(time, "operators") / seconds / row->ranks;
    v[WAITING] += waiting / row->ranks;
    v[BUBBLE] += number(rank, "bubble") / row->ranks;
    v[FORMULA] = number(rank, "bubble_formula");
    /* neither simulated compute nor waiting; or waits that are too long. Without --pretend "late" is missing, a NAN */
    v[LATE] = fmax(v[LATE], 1 - waiting - simulated + number(time, "late") / seconds);
    v[SENT] = fmax(v[SENT], sum(cJSON_GetObjectItem(rank, "comm"), "bytes"));
    if (number(total, "measured") > v[PEAK]) {
        v[PEAK] = number(total, "measured");
        v[PLAYBOOK] = round(sum(memory, "playbook"));
    }
}

static void run_row(Row *row)
{
    char *here = getcwd(NULL, 0);
    const cJSON *rank;
    double *v = row->v;

    fprintf(stderr, "%s on %d rank%s ...", program, row->ranks, row->ranks > 1 ? "s" : "");
    /* env -C: run() changes the directory, but paths in ARGS are relative to this one */
    Result r = run("env -C '%s' mpiexec -n %d %s --quiet --metrics %s --report %s", here, row->ranks, command,
                   in_temporary("metrics"), in_temporary("report"));
    free(here);
    fprintf(stderr, " %.1f s\n", r.seconds);
    if (r.status || access(in_temporary("report"), R_OK))
        take_reason(row, r);
    result_free(r);
    if (row->why[0])
        return;
    char *text = read_file("report");
    cJSON *report = cJSON_Parse(text), *given = cJSON_GetObjectItem(report, "pretend");
    const double peak_flops = number(report, "peak_flops");
    if (given)
        snprintf(pretend, sizeof pretend, "%s", given->valuestring);
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(report, "ranks"))
        take_rank(row, rank, peak_flops / row->ranks);
    if (v[SECONDS] == 0)
        snprintf(row->why, sizeof row->why, "--steps: expected at least 2, as the first is not measured");
    first = first->v[SECONDS] ? first : row;
    read_column("metrics", "tokens", &v[TOKENS], 1);
    v[RATE] = v[TOKENS] / v[SECONDS];
    v[MFU] = peak_flops ? v[RATE] * number(report, "flops_per_token") / peak_flops : NAN;
    v[SPEED_UP] = v[RATE] / first->v[RATE];
    v[EFFICIENCY] = v[SPEED_UP] * first->ranks / row->ranks;
    cJSON_Delete(report);
    free(text);
}

/* ---- Results ---- */

/* How the global batch depends on the ranks. */
static const char *scaling(void)
{
    bool same = true, grows = true;

    for (const Row *row = first; row < rows + row_count; row++)
        if (!row->why[0]) {
            same &= row->v[TOKENS] == first->v[TOKENS];
            grows &= row->v[TOKENS] * first->ranks == first->v[TOKENS] * row->ranks;
        }
    if (same)
        return "strong scaling: a step has the same tokens on any number of ranks";
    if (grows)
        return "weak scaling: the tokens of a step grow with the ranks";
    return "the tokens of a step are neither constant nor proportional to the ranks";
}

static int column_count(void)           /* only pipelines have the last columns */
{
    return isnan(first->v[BUBBLE]) ? BUBBLE : COLUMNS;
}

static void print_row(const Row *row)
{
    printf("%5d", row->ranks);
    if (row->why[0]) {
        printf("  %s\n", row->why);
        return;
    }
    for (int i = 0; i < column_count(); i++)
        if (i < SECONDS)
            printf("%15s", number_text(row->v[i]));
        else
            printf("%11.3f", row->v[i]);
    printf("\n");
}

static void print_table(void)
{
    printf("ranks");
    for (int i = 0; i < column_count(); i++)
        printf(i < SECONDS ? "%15s" : "%11s", names[i]);
    printf("\n");
    for (const Row *row = rows; row < rows + row_count; row++)
        print_row(row);
}

static void write_csv(const char *file)
{
    FILE *f = fopen(file, "w");

    if (!f)
        err(2, "%s", file);
    fprintf(f, "ranks");
    for (int i = 0; i < column_count(); i++)
        fprintf(f, ",%s", names[i]);
    fprintf(f, ",pretend\n");
    for (const Row *row = rows; row < rows + row_count; row++) {
        fprintf(f, "%d", row->ranks);
        for (int i = 0; i < column_count(); i++)
            fprintf(f, ",%.17g", row->why[0] ? NAN : row->v[i]);
        fprintf(f, ",\"%s\"\n", pretend);
    }
    fclose(f);
}

static void print_explanation(void)
{
    int most = 0;

    printf("\nspeedup, efficiency: relative to the first row. mfu: model FLOPs, 6N + 12Lhs per token, over what the\n"
           "devices could compute. computing, waiting: shares of a step. bubble: idle over compute time, and its\n"
           "formula (README of 06). bytes: of the rank with most; they equal their prediction. playbook:\n"
           "its formulas, with 16-bit activations and no buffers.\n%s\n", scaling());
    if (pretend[0])
        printf("SIMULATED: times, and values computed from them, are those of --pretend %s; bytes are measured\n",
               pretend);
    for (const Row *row = rows; row < rows + row_count; row++) {
        most = row->why[0] || row->ranks < most ? most : row->ranks;
        if (row->v[LATE] > MOST_LATE)
            printf("WARNING: real work took longer than simulated, by %.0f%% of a step on %d ranks: use an idle\n"
                   "machine, or fewer GFLOPS in --pretend, and GB/s in proportion\n", 100 * row->v[LATE], row->ranks);
    }
    if (!pretend[0] && most > omp_get_num_procs())
        printf("%d ranks take turns on %d cores: ARGS=\"--pretend GFLOPS,GB/S,MICROSECONDS\" simulates one for each\n",
               most, omp_get_num_procs());
}

/* Draws three panels over the number of ranks, from the CSV: tokens/s, shares of a step, memory. False: gnuplot
 * failed. */
static bool draw(const char *csv, const char *path)
{
    FILE *f = popen("gnuplot", "w");

    signal(SIGPIPE, SIG_IGN);                   /* gnuplot may be missing, or end early */
    if (!f)
        return false;
    fprintf(f, "set datafile separator ','\nset key autotitle columnhead\nset terminal svg size 1200,430 noenhanced\n"
            "set output '%s'\nset multiplot layout 1,3 title '%s%s'\nset xlabel 'ranks'\nset logscale x 2\n"
            "set yrange [0:*]\nset style data linespoints\nplot '%s' using 1:%d\n"
            "plot '' using 1:%d, '' using 1:%d\nplot '' using 1:%d, '' using 1:%d\n", path, program,
            pretend[0] ? ", simulated" : "", csv, RATE + 2, COMPUTING + 2, WAITING + 2, PEAK + 2, PLAYBOOK + 2);
    return pclose(f) == 0;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        errx(2, "expected BACKEND PROGRAM RANKS; use make sweep STAGE=05 NP=\"1 2 4 8\"");
    program = argv[2];
    take_ranks(argv[3]);
    make_command(argv[1], argv + 4);
    for (Row *row = rows; row < rows + row_count; row++)
        run_row(row);
    printf("\nmpiexec -n RANKS %s\n\n", command);
    print_table();
    if (!first->v[SECONDS])
        return 1;
    print_explanation();
    mkdir("build", 0777);
    mkdir("build/sweep", 0777);
    const char *csv = format_text("build/sweep/%s.csv", program), *figure = format_text("build/sweep/%s.svg", program);
    write_csv(csv);
    printf("\nwrote %s%s%s\n", csv, draw(csv, figure) ? " and " : "; gnuplot could not draw ", figure);
    return 0;
}
