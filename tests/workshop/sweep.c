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

enum { MOST_ROWS = 32, MOST_RANKS = 1024, MOST_STEPS = 4096 };
static const int STEPS = 6, PRETENDED_STEPS = 3;        /* simulated steps are all alike */
static const double LATE = 0.05;                        /* largest share of a step that may exceed the simulated time */

typedef struct {
    int ranks;
    char why[256];                      /* the error of a run that failed; then the other fields are unset */
    double tokens, seconds, least;      /* per step: tokens of all ranks; median and least time, without the first */
    double mfu;                         /* of the median step; NAN if the device's rate is unknown */
    double computing, waiting, most;    /* shares of a step: means over the ranks; the rank that waits most */
    bool pipeline;                      /* the run reports a bubble: idle over busy time, the mean over the ranks */
    double bubble, formula, simulated;
    double peak, peak_predicted, playbook;      /* bytes on the rank that needs most */
    double sent, sent_predicted;        /* bytes per step, of the rank that sends most */
    double flops;                       /* per step, of the busiest rank */
    double late;                        /* --pretend: the largest share of a rank's step beyond the simulated time */
} Row;

static Row rows[MOST_ROWS];
static int row_count;
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

static int by_ranks(const void *a, const void *b)
{
    return ((const Row *)a)->ranks - ((const Row *)b)->ranks;
}

/* ---- The command line ---- */

/* Makes one row per number, in rising order, each number once. */
static void take_ranks(const char *list)
{
    char words[1024];
    int kept = 0;

    snprintf(words, sizeof words, "%s", list);
    for (char *word = strtok(words, " ,"); word; word = strtok(NULL, " ,")) {
        char *end;
        const long n = strtol(word, &end, 10);
        if (*end || n < 1 || n > MOST_RANKS)
            refuse("NP=\"%s\": expected numbers of ranks from 1 to %d, such as NP=\"1 2 4 8\", got '%s'", list,
                   MOST_RANKS, word);
        if (row_count == MOST_ROWS)
            refuse("NP=\"%s\": expected at most %d numbers", list, MOST_ROWS);
        rows[row_count++].ranks = n;
    }
    if (!row_count)
        refuse("NP: expected numbers of ranks, such as NP=\"1 2 4 8\", got nothing");
    qsort(rows, row_count, sizeof *rows, by_ranks);
    for (int i = 0; i < row_count; i++)
        if (!kept || rows[i].ranks != rows[kept - 1].ranks)
            rows[kept++] = rows[i];
    row_count = kept;
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

static cJSON *read_report(void)
{
    FILE *f = fopen(in_temporary("report"), "r");
    char *text = NULL;
    size_t size = 0;
    cJSON *report = NULL;

    if (f && getdelim(&text, &size, 0, f) > 0)
        report = cJSON_Parse(text);
    if (f)
        fclose(f);
    free(text);
    return report;
}

static double number(const cJSON *in, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(in, name);

    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* Takes the program's own error line, without the launcher's lines around it. */
static void take_reason(Row *row, Result r)
{
    char *line = r.err;

    for (char *at = r.err; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (!strncmp(at, program, strlen(program)) && at[strlen(program)] == ':') {
            line = at + strlen(program) + 2;
            break;
        }
    line += strspn(line, "\n");
    if (*line)
        snprintf(row->why, sizeof row->why, "%.*s", (int)strcspn(line, "\n"), line);
    else
        snprintf(row->why, sizeof row->why, "the run ended with status %d and printed no error", r.status);
}

static void take_metrics(Row *row)
{
    static double seconds[MOST_STEPS], tokens[MOST_STEPS], mfu[MOST_STEPS];
    const int steps = read_column(in_temporary("metrics"), "seconds", seconds, MOST_STEPS);

    read_column(in_temporary("metrics"), "tokens", tokens, MOST_STEPS);
    read_column(in_temporary("metrics"), "mfu", mfu, MOST_STEPS);
    if (steps < 2) {
        snprintf(row->why, sizeof row->why, "--steps: expected at least 2, as the first is not measured, got %d",
                 steps);
        return;
    }
    row->tokens = tokens[1] - tokens[0];
    const double busy = mfu[1] * seconds[1];            /* the same in all steps */
    qsort(seconds + 1, steps - 1, sizeof *seconds, ascending);
    row->seconds = (seconds[steps / 2] + seconds[(steps + 1) / 2]) / 2;
    row->least = seconds[1];
    row->mfu = busy / row->seconds;
}

/* One rank's entry of the report. `rate`: of the simulated device, in FLOP/s; 0: times are measured. */
static void take_rank(Row *row, const cJSON *rank, double rate)
{
    const cJSON *item, *memory = cJSON_GetObjectItem(rank, "memory"), *time = cJSON_GetObjectItem(rank, "time");
    const double step = number(time, "seconds") / number(time, "steps");
    const double computing = number(time, "operators") / number(time, "steps") / step;
    const double waiting = number(time, "waiting") / number(time, "steps") / step;
    double playbook = 0, sent = 0, sent_predicted = 0, flops = 0;

    row->computing += computing / row->ranks;
    row->waiting += waiting / row->ranks;
    row->most = fmax(row->most, waiting);

    const cJSON *total = cJSON_GetObjectItem(memory, "total");
    cJSON_ArrayForEach(item, memory)
        playbook += cJSON_HasObjectItem(item, "playbook") ? number(item, "playbook") : 0;
    if (number(total, "measured") > row->peak) {
        row->peak = number(total, "measured");
        row->peak_predicted = number(total, "predicted");
        row->playbook = playbook;
    }

    cJSON_ArrayForEach(item, cJSON_GetObjectItem(rank, "comm")) {
        sent += number(item, "bytes");
        sent_predicted += number(item, "predicted");
    }
    if (sent >= row->sent)
        row->sent = sent, row->sent_predicted = sent_predicted;

    if (cJSON_HasObjectItem(rank, "bubble")) {
        row->pipeline = true;
        row->bubble += number(rank, "bubble") / row->ranks;
        row->formula = number(rank, "bubble_formula");
        row->simulated = number(rank, "bubble_simulated");
    }

    cJSON_ArrayForEach(item, cJSON_GetObjectItem(rank, "operators"))    /* of the same steps, all alike */
        flops += number(item, "flops") / number(time, "steps");
    row->flops = fmax(row->flops, flops);
    if (rate)                           /* neither simulated compute nor waiting; or waits that are too long */
        row->late = fmax(row->late, 1 - waiting - flops / rate / step + number(time, "late") / number(time, "seconds"));
}

static void run_row(Row *row)
{
    static char here[4096];
    const cJSON *rank, *given;

    if (!getcwd(here, sizeof here))
        refuse("cannot find the working directory: %s", strerror(errno));
    fprintf(stderr, "%s on %d rank%s ...", program, row->ranks, row->ranks > 1 ? "s" : "");
    unlink(in_temporary("metrics"));
    unlink(in_temporary("report"));
    char launcher[64] = "";
    if (row->ranks > 1)
        snprintf(launcher, sizeof launcher, "mpiexec -n %d ", row->ranks);
    /* env -C: run() changes the directory, but paths in ARGS are relative to this one */
    Result r = run("env -C '%s' %s" SOURCE "/%s --quiet --metrics %s --report %s", here, launcher, command,
                   in_temporary("metrics"), in_temporary("report"));
    fprintf(stderr, " %.1f s\n", r.seconds);
    cJSON *report = r.status ? NULL : read_report();
    if (report)
        take_metrics(row);
    else
        take_reason(row, r);
    result_free(r);
    if (row->why[0]) {
        cJSON_Delete(report);
        return;
    }
    given = cJSON_GetObjectItem(report, "pretend");
    if (given && !pretend)
        pretend = strdup(given->valuestring);
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(report, "ranks"))
        take_rank(row, rank, given ? number(report, "peak_flops") / row->ranks : 0);
    cJSON_Delete(report);
}

/* ---- Results ---- */

static const Row *first;                /* the first run that succeeded */

static double rate(const Row *row)
{
    return row->tokens / row->seconds;
}

static double speed_up(const Row *row)
{
    return rate(row) / rate(first);
}

static double efficiency(const Row *row)
{
    return speed_up(row) * first->ranks / row->ranks;
}

/* The share of a step that the pipeline bubble takes, by the formula. */
static double bubble_share(const Row *row)
{
    return fmin(row->formula * row->computing, row->waiting);
}

/* Prints how the global batch depends on the ranks: constant, proportional, or neither. */
static void print_scaling(void)
{
    bool same = true, grows = true;
    int good = 0;

    for (const Row *row = rows; row < rows + row_count; row++)
        if (!row->why[0]) {
            good++;
            same &= row->tokens == first->tokens;
            grows &= row->tokens * first->ranks == first->tokens * row->ranks;
        }
    if (good == 1)
        printf("a step has %s tokens\n", number_text(first->tokens));
    else if (same)
        printf("strong scaling: a step has the same %s tokens on any number of ranks\n", number_text(first->tokens));
    else if (grows)
        printf("weak scaling: a step has %s tokens per rank, so the global batch grows with the ranks\n",
               number_text(first->tokens / first->ranks));
    else
        printf("the global batch is neither constant nor proportional to the number of ranks\n");
}

static void print_table(void)
{
    const bool pipeline = first->pipeline;

    printf("\n%s%s\n", program, options_given);
    print_scaling();
    if (pretend)
        printf("SIMULATED: times, and values computed from them, are those of --pretend %s; bytes are measured\n",
               pretend);
    printf("speed-up and efficiency: relative to the first row, %d rank%s; step time: the median, without the first\n"
           "each row: mpiexec -n RANKS %s\n\n", first->ranks, first->ranks > 1 ? "s" : "", command);
    printf("%5s  %-*s  %-37s %12s\n", "", pipeline ? 71 : 57,
           pretend ? "--- simulated ---" : "--- measured ---", "--- peak bytes, largest rank ---", "bytes sent");
    printf("%5s %10s %9s %10s %5s  %9s %9s %5s", "ranks", "tokens/s", "speed-up", "efficiency", "MFU", "computing",
           "waiting", "most");
    if (pipeline)
        printf(" %6s %7s", "bubble", "formula");
    printf("  %12s %12s %12s %12s\n", "measured", "predicted", "playbook", "per rank");
    for (const Row *row = rows; row < rows + row_count; row++) {
        printf("%5d", row->ranks);
        if (row->why[0]) {
            printf("  %s\n", row->why);
            continue;
        }
        printf(" %10s %9.2f %9.0f%% ", number_text(rate(row)), speed_up(row), 100 * efficiency(row));
        if (isfinite(row->mfu))
            printf("%4.0f%%", 100 * row->mfu);
        else
            printf("%5s", "?");
        printf("  %8.0f%% %8.0f%% %4.0f%%", 100 * row->computing, 100 * row->waiting, 100 * row->most);
        if (pipeline)
            printf(" %6.3f %7.3f", row->bubble, row->formula);
        printf("  %12s %12s %12s %12s\n", number_text(row->peak), number_text(row->peak_predicted),
               number_text(row->playbook), number_text(row->sent));
    }
    printf("\nMFU: model FLOPs, 6N + 12Lhs per token, over the FLOPs that the devices could compute in that time (?:\n"
           "their rate is unknown). waiting: for transfers and for other ranks, as a share of the step; the mean over\n"
           "the ranks, and the rank that waits most. A transfer behind operators causes no waiting. playbook: its\n"
           "formulas, which count 16-bit activations and no buffers. Bytes sent equal their prediction, or the run\n"
           "would have failed.\n");
    if (pipeline)
        printf("bubble: idle over compute time; the formula is (p-1)/m for afab and 1f1b, (p-1)/(v_c m) for "
               "interleaved,\n(p-1)/(3 m) for zero-bubble, (p-1)/(6 m) for zb-v and dualpipe-v, more if m is below p "
               "or 2p, with\nm micro-batches and v_c model chunks per rank.\n");
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
            gflops = fmin(gflops, 1e-9 * row->flops / (3 * row->least));
            most = row->ranks;
        }
    if (pretend || !strcmp(backend, "cuda") || most <= omp_get_num_procs())
        return;
    const double unit = pow(10, floor(log10(gflops)));
    gflops = floor(gflops / unit) * unit;
    for (const Row *row = rows; row < rows + row_count; row++)
        seconds += row->why[0] ? 0 : PRETENDED_STEPS * 1e-9 * row->flops / gflops;
    const bool given = options_given[0];
    printf("\n%d ranks take turns on %d cores: ARGS=\"%s%s--pretend %g,%g,100\" simulates a device per rank, in about "
           "%.0f s\n", most, omp_get_num_procs(), options_given + given, given ? " " : "", gflops, 0.07 * gflops,
           seconds);
}

static void warn(void)
{
    bool warned = false;

    for (const Row *row = rows; row < rows + row_count; row++)
        if (!row->why[0] && row->late > LATE) {
            printf(warned ? ", %.0f%% on %d"
                          : "\nWARNING: real work took longer than simulated: %.0f%% of a step on %d",
                   100 * row->late, row->ranks);
            warned = true;
        }
    if (warned)
        printf(" ranks.\nThese times are too long by as much. Use an idle machine, or simulate slower devices: fewer "
               "GFLOPS in\n--pretend, and GB/s in proportion\n");
}

/* ---- Files ---- */

static FILE *create(const char *path)
{
    FILE *f = fopen(path, "w");

    if (!f)
        refuse("cannot write %s: %s", path, strerror(errno));
    return f;
}

static void write_csv(const char *path)
{
    FILE *f = create(path);
    const char *p = pretend ? "pretended_" : "";        /* prefix of columns computed from times */

    fprintf(f, "ranks,tokens,%sseconds,%stokens_per_second,%sspeedup,%sefficiency,%scomputing,%swaiting,%swaiting_most,"
            "%sbubble,bubble_formula,bubble_simulated,peak_bytes,peak_predicted,peak_playbook,sent_bytes,"
            "sent_predicted,%smfu,failed\n", p, p, p, p, p, p, p, p, p);
    for (const Row *row = rows; row < rows + row_count; row++) {
        if (row->why[0]) {
            fprintf(f, "%d,,,,,,,,,,,,,,,,,,\"", row->ranks);
            for (const char *c = row->why; *c; c++)
                fprintf(f, *c == '"' ? "\"\"" : "%c", *c);
            fprintf(f, "\"\n");
            continue;
        }
        fprintf(f, "%d,%.0f,%.6f,%.1f,%.4f,%.4f,%.4f,%.4f,%.4f,", row->ranks, row->tokens, row->seconds, rate(row),
                speed_up(row), efficiency(row), row->computing, row->waiting, row->most);
        if (row->pipeline)
            fprintf(f, "%.17g,%.17g,%.17g,", row->bubble, row->formula, row->simulated);
        else
            fprintf(f, ",,,");
        fprintf(f, "%.0f,%.0f,%.0f,%.0f,%.0f,%.4f,\n", row->peak, row->peak_predicted, row->playbook, row->sent,
                row->sent_predicted, row->mfu);
    }
    fclose(f);
}

/* Writes text in gnuplot's quotes, with a line break at the first space after every 130 characters. */
static void write_quoted(FILE *f, const char *text)
{
    int length = 0;

    fputc('"', f);
    for (; *text; text++, length++) {
        if (*text == ' ' && length > 130) {
            fprintf(f, "\\n");
            length = 0;
        } else if (strchr("\"\\`", *text)) {
            fprintf(f, "\\%c", *text);
        } else {
            fputc(*text, f);
        }
    }
    fputc('"', f);
}

/* Draws three panels over the number of ranks: tokens/s, shares of the step time, memory. False: gnuplot failed. */
static bool draw(const char *path)
{
    char title[8192];
    double late = 0;
    FILE *f;

    signal(SIGPIPE, SIG_IGN);                   /* gnuplot may be missing, or end early */
    f = popen("gnuplot", "w");

    if (!f)
        return false;
    fprintf(f, "$rows << END\n");
    for (const Row *row = rows; row < rows + row_count; row++)
        if (!row->why[0]) {
            fprintf(f, "%d %g %g %g %g %g %g %g\n", row->ranks, rate(row), rate(first) * row->ranks / first->ranks,
                    100 * row->computing, 100 * bubble_share(row), 100 * row->waiting, row->peak / 1e6,
                    row->playbook / 1e6);
            late = fmax(late, row->late);
        }
    int at = snprintf(title, sizeof title, "%s%s", program, options_given);
    if (pretend)
        at += snprintf(title + at, sizeof title - at, " (times are simulated");
    if (late > LATE)
        at += snprintf(title + at, sizeof title - at, ", and up to %.0f%% too long", 100 * late);
    snprintf(title + at, sizeof title - at, pretend ? ")" : "");
    fprintf(f, "END\n"
            "set terminal svg size 1200,430 font 'sans-serif,12' background 'white' noenhanced\n"
            "set output '%s'\n"
            "set multiplot layout 1,3 margins 0.075,0.985,0.145,0.78 spacing 0.08 title ", path);
    write_quoted(f, title);
    fprintf(f, "\n"
            "set border 3 lc rgb '#666666'\n"
            "set tics nomirror out textcolor rgb '#333333'\n"
            "set grid ytics lc rgb '#dddddd'\n"
            "set xlabel 'ranks' offset 0,0.3 tc rgb '#333333'\n"
            "set key at graph 0, 1.03 left bottom reverse Left samplen 1.5 maxrows 2 textcolor rgb '#333333'\n"
            "simulated = '%s'\n"
            "set logscale xy 2\n"
            "set ylabel simulated.'tokens/s of all ranks' offset 1.5,0 tc rgb '#333333'\n"
            "set offsets graph 0.06, graph 0.06, graph 0.1, graph 0.1\n"
            "plot $rows using 1:3:xtic(1) with lines dt 2 lw 2 lc rgb '#999999' title 'ideal', \\\n"
            "     $rows using 1:2 with linespoints pt 7 ps 0.8 lw 2 lc rgb '#0072b2' title 'this run'\n"
            "unset logscale\n"
            "set offsets 0, 0, 0, 0\n"
            "set style fill solid 1.0 noborder\n"
            "set xrange [-0.6:|$rows| - 0.4]\n"
            "set xtics scale 0\n"
            "set ylabel '%% of a '.simulated.'step, mean over the ranks' offset 0.5,0\n"
            "set yrange [0:100]\n"
            "plot $rows using 0:(100):(0.7):xtic(1) with boxes lc rgb '#e6e6e6' title 'other', \\\n"
            "     $rows using 0:($4 + $6):(0.7) with boxes lc rgb '#e69f00' title '%s', \\\n",
            pretend ? "simulated " : "", first->pipeline ? "other waiting" : "waiting: transfers, ranks");
    if (first->pipeline)
        fprintf(f, "     $rows using 0:($4 + $5):(0.7) with boxes lc rgb '#999999' title 'bubble, by formula', \\\n");
    fprintf(f, "     $rows using 0:4:(0.7) with boxes lc rgb '#0072b2' title 'operators'\n"
            "set ylabel 'MB on the largest rank' offset 0.5,0\n"
            "set yrange [0:*]\n"
            "plot $rows using ($0 - 0.19):7:(0.36):xtic(1) with boxes lc rgb '#009e73' title 'measured', \\\n"
            "     $rows using ($0 + 0.19):8:(0.36) with boxes lc rgb '#cc79a7' title 'playbook formulas'\n");
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
    for (Row *row = rows; row < rows + row_count; row++) {
        run_row(row);
        if (!first && !row->why[0])
            first = row;
    }
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
    printf("\nwrote %s%s%s\n", csv, draw(figure) ? " and " : "; gnuplot could not draw ", figure);
    warn();
    suggest();
    return 0;
}
