/* make sweep STAGE=05 NP="1 2 4 8" ARGS="...": runs a program on several numbers of ranks, a few steps each. Prints a
 * table of speed, memory and traffic, and writes it as CSV and as a figure to build/sweep. All numbers come from the
 * program's own --metrics and --report.
 *
 *   sweep BACKEND PROGRAM "1 2 4 8" [OPTIONS OF THE PROGRAM]
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../common/print.h"
#include "../harness.h"

/* Eight ranks divide its layers, heads and sequences, and 16 micro-batches fill a pipeline of eight. One thread per
 * rank: otherwise a single rank would use all cores. */
#define MODEL "--layers 8 --hidden 128 --heads 8 --vocab 256 --seq 64 --micro-batch 1 --accumulate 16 --threads 1"
#define LIMIT "--timeout 60"            /* a rank that waits longer ends its run */

enum { MOST_RANKS = 1024, MOST_STEPS = 4096 };
static const int STEPS = 6, PRETENDED_STEPS = 3;        /* simulated steps are all alike */
static const double MOST_LATE = 0.05;                   /* largest share of a step that may exceed the simulated time */

/* What is known of a run: the columns of the CSV, in their order, then what only warnings need. Per step: tokens of all
 * ranks; the median of the seconds, without the first step. Shares of a step: means over the ranks, and the rank that
 * waits most. Bubble of a pipeline: idle over busy time, the mean over the ranks. Bytes: of the rank with most. NAN:
 * unknown. */
enum { TOKENS, SECONDS, RATE, SPEED_UP, EFFICIENCY, COMPUTING, WAITING, MOST, BUBBLE, FORMULA, SIMULATED, PEAK,
       PEAK_PREDICTED, PLAYBOOK, SENT, SENT_PREDICTED, MFU, COLUMNS,
       FLOPS = COLUMNS,                 /* per step, of the busiest rank */
       LATE,                            /* --pretend: the largest share of a rank's step beyond the simulated time */
       VALUES };
static const char *const columns[COLUMNS] = {   /* *: computed from times, so that --pretend renames it */
    "tokens", "*seconds", "*tokens_per_second", "*speedup", "*efficiency", "*computing", "*waiting", "*waiting_most",
    "*bubble", "bubble_formula", "bubble_simulated", "peak_bytes", "peak_predicted", "peak_playbook", "sent_bytes",
    "sent_predicted", "*mfu"};

typedef struct {
    int ranks;
    char why[256];                      /* the error of a run that failed; then the values are unset */
    double v[VALUES];
} Row;

static Row rows[MOST_RANKS];
static int row_count;
static const Row *first;                /* the first run that succeeded */
static const char *backend, *program;
static char options_given[4096], command[6144];         /* ARGS; the command from the path in SOURCE on */
static char *pretend;                   /* as in the reports; NULL: times are measured */

static _Noreturn void refuse(const char *format, ...)
{
    va_list list;

    fprintf(stderr, "sweep: ");
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n");
    exit(2);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* ---- The command line ---- */

/* Makes one row per number, in rising order, each number once. */
static void take_ranks(const char *list)
{
    bool wanted[MOST_RANKS + 1] = {false};
    char words[1024];

    snprintf(words, sizeof words, "%s", list);
    for (char *word = strtok(words, " ,"); word; word = strtok(NULL, " ,")) {
        char *end;
        const long n = strtol(word, &end, 10);
        if (*end || n < 1 || n > MOST_RANKS)
            refuse("NP=\"%s\": expected numbers of ranks from 1 to %d, such as NP=\"1 2 4 8\", got '%s'", list,
                   MOST_RANKS, word);
        wanted[n] = true;
    }
    for (int n = 1; n <= MOST_RANKS; n++)
        if (wanted[n])
            rows[row_count++].ranks = n;
    if (!row_count)
        refuse("NP: expected numbers of ranks, such as NP=\"1 2 4 8\", got nothing");
}

/* ARGS come last, so that they override the defaults. */
static void take_options(int count, char **words)
{
    int at = 0, steps = STEPS;

    for (int i = 0; i < count; i++) {
        const char *quote = strpbrk(words[i], " ") || !*words[i] ? "'" : "";
        at += snprintf(options_given + at, sizeof options_given - at, " %s%s%s", quote, words[i], quote);
        if (at >= (int)sizeof options_given)
            refuse("ARGS: expected at most %zu characters", sizeof options_given - 1);
        if (!strncmp(words[i], "--pretend", 9))
            steps = PRETENDED_STEPS;
    }
    snprintf(command, sizeof command, "%s/%s/%s %s --steps %d %s%s", BUILD + sizeof SOURCE, backend, program, MODEL,
             steps, LIMIT, options_given);
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
    char begin[128], *line;

    snprintf(begin, sizeof begin, "%s: ", program);
    line = strstr(r.err, begin);
    line = line ? line + strlen(begin) : r.err + strspn(r.err, "\n");
    snprintf(row->why, sizeof row->why, "%.*s", (int)strcspn(line, "\n"), line);
    if (!*line)
        snprintf(row->why, sizeof row->why, "the run ended with status %d and printed no error", r.status);
}

static void take_metrics(Row *row)
{
    static double seconds[MOST_STEPS], tokens[MOST_STEPS];
    const int steps = read_column("metrics", "seconds", seconds, MOST_STEPS);

    read_column("metrics", "tokens", tokens, MOST_STEPS);
    if (steps < 2)
        snprintf(row->why, sizeof row->why, "--steps: expected at least 2, as the first is not measured, got %d",
                 steps);
    qsort(seconds + 1, steps - 1, sizeof *seconds, ascending);
    row->v[TOKENS] = tokens[0];
    row->v[SECONDS] = (seconds[steps / 2] + seconds[(steps + 1) / 2]) / 2;
    row->v[RATE] = row->v[TOKENS] / row->v[SECONDS];
}

/* One rank's entry of the report. `rate`: of the simulated device, in FLOP/s; 0: times are measured. */
static void take_rank(Row *row, const cJSON *rank, double rate)
{
    const cJSON *memory = cJSON_GetObjectItem(rank, "memory"), *total = cJSON_GetObjectItem(memory, "total");
    const cJSON *time = cJSON_GetObjectItem(rank, "time"), *comm = cJSON_GetObjectItem(rank, "comm");
    const double seconds = number(time, "seconds"), waiting = number(time, "waiting") / seconds;
    const double flops = sum(cJSON_GetObjectItem(rank, "operators"), "flops");
    double *v = row->v;

    v[COMPUTING] += number(time, "operators") / seconds / row->ranks;
    v[WAITING] += waiting / row->ranks;
    v[MOST] = fmax(v[MOST], waiting);
    v[BUBBLE] += number(rank, "bubble") / row->ranks;
    v[FORMULA] = number(rank, "bubble_formula");
    v[SIMULATED] = number(rank, "bubble_simulated");
    v[FLOPS] = fmax(v[FLOPS], flops / number(time, "steps"));
    if (rate)                           /* neither simulated compute nor waiting; or waits that are too long */
        v[LATE] = fmax(v[LATE], 1 - waiting - flops / rate / seconds + number(time, "late") / seconds);
    if (number(total, "measured") > v[PEAK]) {
        v[PEAK] = number(total, "measured");
        v[PEAK_PREDICTED] = number(total, "predicted");
        v[PLAYBOOK] = sum(memory, "playbook");
    }
    if (sum(comm, "bytes") >= v[SENT]) {
        v[SENT] = sum(comm, "bytes");
        v[SENT_PREDICTED] = sum(comm, "predicted");
    }
}

static void run_row(Row *row)
{
    static char here[4096];
    char launcher[64] = "";
    const cJSON *rank;

    if (!getcwd(here, sizeof here))
        refuse("cannot find the working directory: %s", strerror(errno));
    fprintf(stderr, "%s on %d rank%s ...", program, row->ranks, row->ranks > 1 ? "s" : "");
    unlink(in_temporary("metrics"));
    unlink(in_temporary("report"));
    if (row->ranks > 1)
        snprintf(launcher, sizeof launcher, "mpiexec -n %d ", row->ranks);
    /* env -C: run() changes the directory, but paths in ARGS are relative to this one */
    Result r = run("env -C '%s' %s" SOURCE "/%s --quiet --metrics %s --report %s", here, launcher, command,
                   in_temporary("metrics"), in_temporary("report"));
    fprintf(stderr, " %.1f s\n", r.seconds);
    if (r.status || access(in_temporary("report"), R_OK))
        take_reason(row, r);
    else
        take_metrics(row);
    result_free(r);
    if (row->why[0])
        return;
    char *text = read_file("report");
    cJSON *report = cJSON_Parse(text), *given = cJSON_GetObjectItem(report, "pretend");
    const double peak_flops = number(report, "peak_flops");
    if (given && !pretend)
        pretend = strdup(given->valuestring);
    row->v[MFU] = peak_flops ? row->v[RATE] * number(report, "flops_per_token") / peak_flops : NAN;
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(report, "ranks"))
        take_rank(row, rank, given ? peak_flops / row->ranks : 0);
    cJSON_Delete(report);
    free(text);
    first = first ? first : row;
    row->v[SPEED_UP] = row->v[RATE] / first->v[RATE];
    row->v[EFFICIENCY] = row->v[SPEED_UP] * first->ranks / row->ranks;
}

/* ---- Results ---- */

/* Prints how the global batch depends on the ranks: constant, proportional, or neither. */
static void print_scaling(void)
{
    const double tokens = first->v[TOKENS];
    bool same = true, grows = true;             /* both: there is one row */

    for (const Row *row = first; row < rows + row_count; row++)
        if (!row->why[0]) {
            same &= row->v[TOKENS] == tokens;
            grows &= row->v[TOKENS] * first->ranks == tokens * row->ranks;
        }
    if (same && grows)
        printf("a step has %s tokens\n", number_text(tokens));
    else if (same)
        printf("strong scaling: a step has the same %s tokens on any number of ranks\n", number_text(tokens));
    else if (grows)
        printf("weak scaling: a step has %s tokens per rank, so the global batch grows with the ranks\n",
               number_text(tokens / first->ranks));
    else
        printf("the global batch is neither constant nor proportional to the number of ranks\n");
}

static void print_table(void)
{
    const bool pipeline = isfinite(first->v[BUBBLE]);

    printf("\n%s%s\n", program, options_given);
    print_scaling();
    if (pretend)
        printf("SIMULATED: times, and values computed from them, are those of --pretend %s; bytes are measured\n",
               pretend);
    printf("speed-up and efficiency: relative to the first row, %d rank%s; step time: the median, without the first\n"
           "each row: mpiexec -n RANKS %s\n\n", first->ranks, first->ranks > 1 ? "s" : "", command);
    printf("%5s  %-*s  %-37s %12s\n", "", pipeline ? 71 : 57,
           pretend ? "--- simulated ---" : "--- measured ---", "--- peak bytes, largest rank ---", "bytes sent");
    printf("%5s %10s %9s %10s %5s  %9s %9s %5s%s  %12s %12s %12s %12s\n", "ranks", "tokens/s", "speed-up", "efficiency",
           "MFU", "computing", "waiting", "most", pipeline ? " bubble formula" : "", "measured", "predicted",
           "playbook", "per rank");
    for (const Row *row = rows; row < rows + row_count; row++) {
        if (row->why[0]) {
            printf("%5d  %s\n", row->ranks, row->why);
            continue;
        }
        const double *v = row->v;
        printf("%5d %10s %9.2f %9.0f%% ", row->ranks, number_text(v[RATE]), v[SPEED_UP], 100 * v[EFFICIENCY]);
        printf(isfinite(v[MFU]) ? "%4.0f%%" : "    ?", 100 * v[MFU]);
        printf("  %8.0f%% %8.0f%% %4.0f%%", 100 * v[COMPUTING], 100 * v[WAITING], 100 * v[MOST]);
        if (pipeline)
            printf(" %6.3f %7.3f", v[BUBBLE], v[FORMULA]);
        for (int i = PEAK; i <= SENT; i++)
            printf("%*s", i == PEAK ? 14 : 13, number_text(v[i]));
        printf("\n");
    }
    printf("\nMFU: model FLOPs, 6N + 12Lhs per token, over the FLOPs that the devices could compute in that time (?:\n"
           "their rate is unknown). waiting: for transfers and for other ranks, as a share of the step; the mean over\n"
           "the ranks, and the rank that waits most. A transfer behind operators causes no waiting. playbook: its\n"
           "formulas, which count 16-bit activations and no buffers. Bytes sent equal their prediction, or the run\n"
           "would have failed.\n");
    if (pipeline)
        printf("bubble: idle over compute time; the README of 06 has its formulas.\n");
}

/* ---- How far the times can be trusted ---- */

/* Suggests a --pretend: devices so slow that the real work of all ranks takes a third of the simulated time on these
 * cores; links in proportion to them and to the width of MODEL, as 450 GB/s are to 400 TFLOP/s, 2-byte elements and a
 * width of 4096: 0.07 bytes per FLOP. */
static void suggest(void)
{
    double gflops = INFINITY, seconds = 0;
    int most = 0;

    for (const Row *row = rows; row < rows + row_count; row++)
        if (!row->why[0]) {
            gflops = fmin(gflops, 1e-9 * row->v[FLOPS] / (3 * row->v[SECONDS]));
            most = row->ranks;
        }
    if (pretend || !strcmp(backend, "cuda") || most <= omp_get_num_procs())
        return;
    const double unit = pow(10, floor(log10(gflops)));
    gflops = floor(gflops / unit) * unit;
    for (const Row *row = rows; row < rows + row_count; row++)
        seconds += row->why[0] ? 0 : PRETENDED_STEPS * 1e-9 * row->v[FLOPS] / gflops;
    const bool given = options_given[0];
    printf("\n%d ranks take turns on %d cores: ARGS=\"%s%s--pretend %g,%g,100\" simulates a device per rank, in about "
           "%.0f s\n", most, omp_get_num_procs(), options_given + given, given ? " " : "", gflops, 0.07 * gflops,
           seconds);
}

static void warn(void)
{
    bool warned = false;

    for (const Row *row = rows; row < rows + row_count; row++)
        if (!row->why[0] && row->v[LATE] > MOST_LATE) {
            printf(warned ? ", %.0f%% on %d"
                          : "\nWARNING: real work took longer than simulated: %.0f%% of a step on %d",
                   100 * row->v[LATE], row->ranks);
            warned = true;
        }
    if (warned)
        printf(" ranks.\nThese times are too long by as much. Use an idle machine, or simulate slower devices: fewer "
               "GFLOPS in\n--pretend, and GB/s in proportion\n");
}

/* ---- Files ---- */

static void write_csv(const char *path)
{
    FILE *f = fopen(path, "w");

    if (!f)
        refuse("cannot write %s: %s", path, strerror(errno));
    fprintf(f, "ranks");
    for (int i = 0; i < COLUMNS; i++)
        fprintf(f, ",%s%s", columns[i][0] == '*' && pretend ? "pretended_" : "", columns[i] + (columns[i][0] == '*'));
    fprintf(f, ",failed\n");
    for (const Row *row = rows; row < rows + row_count; row++) {
        fprintf(f, "%d", row->ranks);
        for (int i = 0; i < COLUMNS; i++)
            fprintf(f, row->why[0] || isnan(row->v[i]) ? "," : ",%.17g", row->v[i]);
        fprintf(f, ",\"");
        for (const char *c = row->why; *c; c++)
            fprintf(f, *c == '"' ? "\"\"" : "%c", *c);
        fprintf(f, "\"\n");
    }
    fclose(f);
}

/* Draws three panels over the number of ranks, from the CSV: tokens/s, shares of the step time, memory. False: gnuplot
 * failed. */
static bool draw(const char *csv, const char *path)
{
    const char *of = pretend ? "simulated " : "";
    FILE *f = popen("gnuplot", "w");

    signal(SIGPIPE, SIG_IGN);                   /* gnuplot may be missing, or end early */
    if (!f)
        return false;
    fprintf(f, "set datafile separator ','\n"
            "set terminal svg size 1200,430 font 'sans-serif,12' background 'white' noenhanced\n"
            "set output '%s'\n"
            "set multiplot layout 1,3 margins 0.075,0.985,0.145,0.78 spacing 0.08 title '%s'\n"
            "set border 3\nset tics nomirror out\nset grid ytics\nset xlabel 'ranks'\n"
            "set key at graph 0, 1.03 left bottom reverse Left samplen 1.5 maxrows 2\n"
            "set logscale xy 2\nset offsets graph 0.06, graph 0.06, graph 0.1, graph 0.1\n"
            "set ylabel '%stokens/s of all ranks'\n"
            "plot '%s' skip 1 using 1:($4/$6):xtic(1) with lines dt 2 lw 2 lc rgb '#999999' title 'ideal', \\\n"
            "     '' skip 1 using 1:4 with linespoints pt 7 ps 0.8 lw 2 lc rgb '#0072b2' title 'this run'\n"
            "unset logscale\nset offsets 0.6, 0.6, 0, 0\nset xtics scale 0\n"
            "set style fill solid 1.0 noborder\nset boxwidth 0.36\n"
            "set ylabel '%% of a %sstep, mean over the ranks'\nset yrange [0:100]\n"
            "plot '' skip 1 using 0:(100*($7+$8)):xtic(1) with boxes lc rgb '#e69f00' title 'waiting', \\\n", path,
            program, of, csv, of);
    if (isfinite(first->v[BUBBLE]))
        fprintf(f, "     '' skip 1 using 0:(100*($7+($7*$11<$8?$7*$11:$8))) with boxes lc rgb '#999999' "
                "title 'bubble, by formula', \\\n");
    fprintf(f, "     '' skip 1 using 0:(100*$7) with boxes lc rgb '#0072b2' title 'operators'\n"
            "set ylabel 'MB on the largest rank'\nset yrange [0:*]\n"
            "plot '' skip 1 using ($0-0.19):($13/1e6):xtic(1) with boxes lc rgb '#009e73' title 'measured', \\\n"
            "     '' skip 1 using ($0+0.19):($15/1e6) with boxes lc rgb '#cc79a7' title 'playbook formulas'\n");
    return pclose(f) == 0;
}

int main(int argc, char **argv)
{
    char csv[256], figure[256];

    if (argc < 4)
        refuse("expected BACKEND PROGRAM RANKS, got %d arguments; use make sweep STAGE=05 NP=\"1 2 4 8\"", argc - 1);
    backend = argv[1], program = argv[2];
    if (!strncmp(program, "01", 2) || !strncmp(program, "02", 2) || !strncmp(program, "08", 2))
        refuse("%s runs on one rank, like 01, 02 and 08; 03 to 07, 09 and 10 can be swept: make sweep STAGE=05",
               program);
    take_ranks(argv[3]);
    take_options(argc - 4, argv + 4);
    for (Row *row = rows; row < rows + row_count; row++)
        run_row(row);
    if (!first) {
        for (const Row *row = rows; row < rows + row_count; row++)
            printf("%5d  %s\n", row->ranks, row->why);
        fprintf(stderr, "sweep: no run succeeded: mpiexec -n RANKS %s\n", command);
        return 1;
    }
    print_table();
    mkdir("build", 0777);
    mkdir("build/sweep", 0777);
    snprintf(csv, sizeof csv, "build/sweep/%s.csv", program);
    snprintf(figure, sizeof figure, "build/sweep/%s.svg", program);
    write_csv(csv);
    printf("\nwrote %s%s%s\n", csv, draw(csv, figure) ? " and " : "; gnuplot could not draw ", figure);
    warn();
    suggest();
    return 0;
}
