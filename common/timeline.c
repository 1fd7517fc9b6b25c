#include "timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "comm.h"
#include "error.h"
#include "options.h"
#include "outputs.h"
#include "print.h"
#include "trace.h"

enum { LABEL = 18, SHOWN = 16, LANES = 12, LANE_HEIGHT = 12, SVG_WIDTH = 1000 };
typedef enum { FORWARD, BACKWARD, WEIGHTS, RECOMPUTED, OPTIMIZER, OTHER, TRANSFER, WAITING, KINDS } Kind;
static const struct {
    char letter;
    int color;                              /* Okabe and Ito's, as in the figures */
    const char *meaning;
} kinds[KINDS] = {{'F', 0x0072b2, "forward"}, {'B', 0xe69f00, "backward"}, {'W', 0x009e73, "weights"},
                  {'R', 0x56b4e9, "recomputed"}, {'O', 0xcc79a7, "optimizer"}, {'-', 0x999999, "other"},
                  {'=', 0xd55e00, "in flight"}, {'.', 0xe6e6e6, "waits"}};

typedef struct {                            /* an operator, lane 0, or a transfer, in the lane of its group */
    double begin, end;
    int lane;
    Kind kind;
    const char *name;
} Box;

static Box *boxes;                          /* of this rank; boxes[0]: its step */
static int64_t count;
static const char *lane_name[LANES] = {"compute"};
static int lanes = 1, step_drawn;

int timeline_open(int first_step)
{
    const char *text = options.timeline;
    char *end;
    const long step = text && *text ? strtol(text, &end, 10) : options.steps;
    const bool file = text && strlen(text) > 4 && !strcmp(text + strlen(text) - 4, ".svg");

    if (!text || options.steps <= first_step)
        return 0;
    if (file)
        output_check("timeline", text, "<svg");
    else if (*text && (*end || step <= first_step || step > options.steps))
        fail_usage("--timeline: expected a step from %d to %d, a file named *.svg, or nothing, got '%s'",
                   first_step + 1, options.steps, text);
    return step_drawn = file ? options.steps : step;
}

/* ---- The boxes ---- */

static Kind kind_of(const TraceSpan *s)
{
    const char *phase = s->phase ? s->phase : "";
    const size_t n = strlen(s->name);

    if (strncmp(phase, "backward", 8))
        return !strcmp(phase, "forward") ? FORWARD : !strcmp(phase, "optimizer") ? OPTIMIZER : OTHER;
    if (options.recompute != RECOMPUTE_NONE && n > 8 && !strcmp(s->name + n - 8, "_forward"))
        return RECOMPUTED;
    return strstr(phase, "weight") ? WEIGHTS : BACKWARD;        /* where a schedule separates them */
}

static void add_box(TraceSpan *s, int lane, Kind kind)
{
    const double begin = trace_seconds(&s->begin);

    boxes[count++] = (Box){begin, fmax(begin, trace_seconds(&s->end)), lane, kind, s->name};    /* if still in flight */
}

/* The step, operators, and a lane for each group that transferred something; the world's is the last. */
static void take_boxes(void)
{
    TraceSpan *spans;
    const int64_t all = trace_spans(&spans);
    const Comm *c = world;

    boxes = host_alloc((all + 1) * sizeof *boxes, "--timeline");
    for (TraceSpan *s = spans; s < spans + all; s++)
        if (s == spans || s->row == TRACE_OPERATOR)
            add_box(s, 0, s == spans ? WAITING : kind_of(s));
    do {
        const int64_t before = count;
        c = comm_next(c) ? comm_next(c) : world;
        for (TraceSpan *s = spans; s < spans + all; s++)
            if (s->group && !strcmp(s->group, comm_name(c)))
                add_box(s, lanes, TRANSFER);
        if (count > before)
            lane_name[lanes++] = comm_name(c);
    } while (c != world && lanes < LANES);
}

static double overlap(const Box *b, double begin, double end)
{
    return fmax(0, fmin(b->end, end) - fmax(b->begin, begin));
}

typedef struct {
    const char *op, *group;
    double seconds;
} Cause;
enum { CAUSES = 16 };

/* Adds to causes what the rank waits for from `begin` to `end`: the transfer that ends first, also before it starts, as
 * other ranks may be late; then the next. Returns the seconds of transfers that nothing hides. */
static double explain_gap(Cause causes[CAUSES], double begin, double end)
{
    double exposed = 0;

    for (const Box *b = boxes + 1; b < boxes + count; b++)
        exposed += b->kind == TRANSFER ? overlap(b, begin, end) : 0;
    for (const Box *next = boxes; next && begin < end; ) {
        next = NULL;
        for (const Box *b = boxes + 1; b < boxes + count; b++)
            if (b->kind == TRANSFER && overlap(b, begin, end) > 0 && (!next || b->end < next->end))
                next = b;
        for (int i = 0; next && i < CAUSES; i++)
            if (!causes[i].op || (!strcmp(causes[i].op, next->name) && causes[i].group == lane_name[next->lane])) {
                causes[i] = (Cause){next->name, lane_name[next->lane],
                                    causes[i].seconds + fmin(next->end, end) - begin};
                break;
            }
        begin = next ? next->end : end;
    }
    return exposed;
}

static const char *ms_text(double seconds)      /* without the unit */
{
    return seconds >= 1 ? number_text(llround(1e3 * seconds)) : format_text("%.3g", 1e3 * seconds);
}

/* "computes 71%, waits 29% (all_reduce dp 20%, recv pp 9%), hides 0.8 of 1.1 ms", of transfers. Returns the seconds
 * that the rank computes. */
static double write_shares(FILE *f)
{
    const double all = boxes[0].end - boxes[0].begin;
    Cause causes[CAUSES] = {0};
    double computed = 0, transfers = 0, exposed = 0, at = boxes[0].begin;
    const char *before = " (";

    for (const Box *b = boxes + 1; b < boxes + count; b++) {
        if (b->kind == TRANSFER) {
            transfers += b->end - b->begin;
            continue;
        }
        exposed += explain_gap(causes, at, b->begin);
        computed += b->end - b->begin;
        at = fmax(at, b->end);
    }
    exposed += explain_gap(causes, at, boxes[0].end);
    fprintf(f, "computes %.0f%%, waits %.0f%%", 100 * computed / all, 100 - 100 * computed / all);
    for (int shown = 0, most = 0; shown < 2; shown++, causes[most].seconds = 0, most = 0) {
        for (int i = 1; i < CAUSES; i++)
            most = causes[i].seconds > causes[most].seconds ? i : most;
        if (causes[most].seconds < 0.01 * all)
            break;
        fprintf(f, "%s%s %s %.0f%%", before, causes[most].op, causes[most].group, 100 * causes[most].seconds / all);
        before = ", ";
    }
    fprintf(f, "%s", *before == ',' ? ")" : "");
    if (transfers > 0)
        fprintf(f, ", hides %s of %s ms", ms_text(transfers - exposed), ms_text(transfers));
    return computed;
}

/* ---- Drawing ---- */

typedef enum { LETTERS, COLORS, SVG } Style;
typedef struct {
    Style style;
    int cells;                              /* across: characters, or pixels of an SVG */
    double begin, end;                      /* of the step, on all ranks */
    int lanes_above, all_lanes;             /* of the ranks before this one; of all that are drawn */
    bool has[KINDS];                        /* on any rank */
} Picture;

/* mpiexec's ranks have no terminal, so CLICOLOR_FORCE=1 (bixense.com/clicolors) also stands for one. */
static bool takes_color(void)
{
    const char *forced = getenv("CLICOLOR_FORCE");

    return !getenv("NO_COLOR") && (print_to_terminal() || (forced && atoi(forced)));
}

static Picture picture_of(bool svg)
{
    struct winsize window = {0};
    const char *columns = getenv("COLUMNS");
    struct { double begin, end; int lanes, columns; bool color, has[KINDS]; } mine = {boxes[0].begin, boxes[0].end,
        lanes, 0, takes_color()}, *all = host_alloc(comm_size(world) * sizeof mine, "--timeline");
    Picture p = {.begin = INFINITY};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) || !window.ws_col)
        window.ws_col = columns && atoi(columns) > 0 ? atoi(columns) : 100;
    mine.columns = window.ws_col;
    for (const Box *b = boxes; b < boxes + count; b++)
        mine.has[b->kind] = true;
    comm_gather_host(world, all, &mine, sizeof mine);
    for (int r = 0; r < comm_size(world); r++) {
        p.begin = fmin(p.begin, all[r].begin), p.end = fmax(p.end, all[r].end);
        p.lanes_above += r < comm_rank(world) ? all[r].lanes : 0;
        p.all_lanes += r < SHOWN ? all[r].lanes : 0;
        for (int k = 0; k < KINDS; k++)
            p.has[k] |= all[r].has[k];
    }
    p.style = svg ? SVG : all[0].color ? COLORS : LETTERS;          /* rank 0 prints */
    p.cells = svg ? 800 : fmax(20, all[0].columns - LABEL);
    free(all);
    return p;
}

/* What fills most of so many seconds from `from` on in a lane; KINDS: nothing. */
static Kind kind_at(int lane, double from, double seconds)
{
    const double to = from + seconds;
    double share[KINDS + 1] = {[WAITING] = lane ? 0 : overlap(&boxes[0], from, to)};
    Kind most = KINDS;

    for (const Box *b = boxes + 1; b < boxes + count; b++)
        if (b->lane == lane) {
            share[b->kind] += overlap(b, from, to);
            share[WAITING] -= lane ? 0 : overlap(b, from, to);
        }
    for (int k = 0; k < KINDS; k++)
        most = share[k] > share[most] ? (Kind)k : most;
    return most;
}

/* A terminal's color for what comes, and a cell. Waiting is faint on dark and on light terminals. */
static const char *ink(Kind k)
{
    return k == WAITING ? "\033[0;2m" : format_text("\033[0;38;2;%d;%d;%dm", kinds[k].color >> 16,
                                                    kinds[k].color >> 8 & 255, kinds[k].color & 255);
}

static const char *block(Kind kind)
{
    return kind == WAITING ? "\u2591" : "\u2588";
}

/* One lane: its cells, in runs of one kind. */
static void draw_lane(FILE *f, const Picture *p, int lane)
{
    const char *rank = lane ? "" : format_text("rank %d", comm_rank(world));
    const double cell = (p->end - p->begin) / p->cells, y = LANE_HEIGHT * (p->lanes_above + lane + 2.0);

    fprintf(f, p->style == SVG ? "<text x=\"4\" y=\"%3$.0f\">%1$s</text><text x=\"54\" y=\"%3$.0f\">%2$s</text>\n"
                               : "%1$-8s%2$-10s", rank, lane_name[lane], y + LANE_HEIGHT - 3);
    for (int i = 0, n; i < p->cells; i += n) {
        const Kind kind = kind_at(lane, p->begin + i * cell, cell);
        for (n = 1; i + n < p->cells && kind_at(lane, p->begin + (i + n) * cell, cell) == kind; )
            n++;
        if (p->style == SVG && kind < KINDS)
            fprintf(f, "<rect x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%d\" fill=\"#%06x\"/>\n", 120 + i, y, n,
                    LANE_HEIGHT - 2, kinds[kind].color);
        if (p->style == COLORS && kind < KINDS)
            fputs(ink(kind), f);
        for (int c = 0; c < n && p->style != SVG; c++)
            fputs(kind == KINDS ? " " : p->style == LETTERS ? (char[]){kinds[kind].letter, 0} : block(kind), f);
    }
    fprintf(f, p->style == SVG ? "" : p->style == COLORS ? "\033[0m\n" : "\n");
}

/* On rank 0, which has a file, prints the texts of the ranks that are shown; with `before`, as a line each. */
static void gather_and_print(FILE *to, const char *before, const char *mine)
{
    const int n = comm_size(world);
    int length = strlen(mine) + 1, all[n];

    comm_gather_host(world, all, &length, sizeof length);
    for (int r = 0; r < n; r++)
        length = all[r] > length ? all[r] : length;
    char *texts = host_alloc((int64_t)length * n, "--timeline"), *padded = host_alloc(length, "--timeline");
    comm_gather_host(world, texts, strcpy(padded, mine), length);
    for (int r = 0; to && r < n && r < SHOWN; r++)
        fprintf(to, "%s%s%s", before ? format_text("%s %-3d", before, r) : "", texts + (int64_t)r * length,
                before ? "\n" : "");
    free(texts), free(padded);
}

/* Title and legend. */
static void draw_head(FILE *f, const Picture *p)
{
    if (p->style == SVG)
        fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 930 %d\" font-family=\"sans-serif\" "
                "font-size=\"10\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n<text x=\"4\" y=\"15\">",
                LANE_HEIGHT * (p->all_lanes + 3));
    fprintf(f, "step %d, %s ms%s", step_drawn, ms_text(p->end - p->begin), p->style == SVG ? "</text>" : "");
    for (int k = 0, x = 120; k < KINDS; k++) {
        if (p->has[k] && p->style == SVG)
            fprintf(f, "\n<rect x=\"%d\" y=\"6\" width=\"10\" height=\"10\" fill=\"#%06x\"/><text x=\"%d\" y=\"15\">%s"
                    "</text>", x, kinds[k].color, x + 14, kinds[k].meaning);
        else if (p->has[k] && p->style == COLORS)
            fprintf(f, "  %s%s\033[0m %s", ink(k), block(k), kinds[k].meaning);
        else if (p->has[k])
            fprintf(f, "  %c %s", kinds[k].letter, kinds[k].meaning);
        x += p->has[k] ? 5 * strlen(kinds[k].meaning) + 36 : 0;
    }
    fprintf(f, "\n");
}

void timeline_draw(void)
{
    const bool draws = comm_rank(world) == 0;
    char *text;
    size_t size;

    if (step_drawn)
        take_boxes();
    if (step_drawn && !count)
        print_rank_0("timeline: the run ended before step %d\n", step_drawn);
    if (!count)
        return;
    const Picture p = picture_of(strstr(options.timeline, ".svg"));
    FILE *to = !draws ? NULL : p.style == SVG ? output_open("timeline", options.timeline, true) : stdout;
    FILE *f = open_memstream(&text, &size);
    for (int lane = 0; lane < lanes; lane++)
        draw_lane(f, &p, lane);
    fclose(f);
    if (draws)
        draw_head(to, &p);
    gather_and_print(to, NULL, text);
    free(text);
    if (draws && p.style == SVG) {
        fprintf(to, "</svg>\n");
        output_close("timeline", options.timeline, to);
    } else if (draws) {
        printf("%-*s0%*s%*s\n", LABEL, "ms", p.cells / 2, ms_text((p.end - p.begin) / 2), p.cells - p.cells / 2 - 1,
               ms_text(p.end - p.begin));
    }

    f = open_memstream(&text, &size);
    const double busy = comm_sum(world, write_shares(f)), all = comm_sum(world, boxes[0].end - boxes[0].begin);
    fclose(f);
    gather_and_print(draws ? stdout : NULL, "rank", text);
    free(text);
    if (draws && comm_size(world) > 1)
        printf("idle over busy time of %s%d ranks: %.3f\n", comm_size(world) > SHOWN ? "all " : "", comm_size(world),
               (all - busy) / busy);
}
