#include "timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../comm/comm.h"
#include "../base/error.h"
#include "../base/options.h"
#include "outputs.h"
#include "../base/print.h"
#include "../base/trace.h"

enum { LABEL = 18, SHOWN = 16, LANES = 32, CELLS = 1000, LANE_HEIGHT = 12 };
typedef enum { NOTHING, FORWARD, BACKWARD, WEIGHTS, RECOMPUTED, OPTIMIZER, OTHER, TRANSFER, WAITING, KINDS } Kind;
static const struct { const char *meaning; int color; } kinds[KINDS] = {    /* letter first; Okabe and Ito's color */
    {" "}, {"F forward", 0x0072b2}, {"B backward", 0xe69f00}, {"W weights", 0x009e73}, {"R recomputed", 0x56b4e9},
    {"O optimizer", 0xcc79a7}, {"- other", 0x999999}, {"= in flight", 0xd55e00}, {". waits", 0xe6e6e6}};

typedef struct {                            /* the step, an operator, or a transfer, in the lane of its group */
    double begin, end, waited;              /* waited: for all boxes of this name, kept in the first of them */
    Kind kind;
    int lane;
    char name[40];                          /* "all_reduce dp"; an operator's ends with "compute" */
} Box;

/* `stride` boxes per rank: its step, then the others in the order of their ends, then at least one of kind NOTHING. */
static Box *boxes;
static int64_t stride = 1;
static double begin = INFINITY, cell;       /* seconds: when the first rank began the step; of a cell */
static double wanted_cell;                  /* seconds; 0: the step fills the window */
static int step_drawn;

static Kind kind_of(const TraceSpan *s)
{
    if (s->row != TRACE_OPERATOR)
        return s->group ? TRANSFER : WAITING;   /* the step: a rank waits where no operator is */
    if (strncmp(s->phase, "backward", 8))
        return !strcmp(s->phase, "forward") ? FORWARD : !strcmp(s->phase, "optimizer") ? OPTIMIZER : OTHER;
    return options.recompute != RECOMPUTE_NONE && strstr(s->name, "_forward") ? RECOMPUTED
           : strstr(s->phase, "weight") ? WEIGHTS : BACKWARD;   /* some schedules separate them */
}

/* Returns whether this is rank 0, with boxes to draw. */
static bool gather_boxes(void)
{
    TraceSpan *spans;

    while (comm_sum(world, trace_spans(&spans) >= stride) > 0)
        stride *= 2;
    const int64_t count = trace_spans(&spans);          /* again, because a --trace also records the sums */
    boxes = host_alloc(comm_size(world) * stride * sizeof *boxes, "--timeline");
    Box *mine = host_alloc(stride * sizeof *boxes, "--timeline"), *end = mine;
    for (TraceSpan *s = spans; s < spans + count; s++) {
        const double began = fmax(mine->begin, trace_seconds(&s->begin));       /* not before the step's */
        const double ended = fmax(began, trace_seconds(&s->end));               /* 0: still in flight */
        int lane = s->group ? 1 : 0;                                            /* the world's is the last */
        Box *b = end;
        if (s->row == TRACE_PROGRAM && s > spans)
            continue;
        for (const Comm *c = comm_next(world); lane && lane < LANES - 1 && c && strcmp(s->group, comm_name(c)); lane++)
            c = comm_next(c);
        for (end++; b > mine + 1 && b[-1].end > ended; b--)
            *b = b[-1];
        *b = (Box){began, ended, .kind = kind_of(s), .lane = lane};
        snprintf(b->name, sizeof b->name, "%s %s", s->name, s->group ? s->group : "compute");
    }
    comm_gather_host(world, boxes, mine, stride * sizeof *boxes);
    free(mine);
    if (count == 0)
        print_rank_0("timeline: the run ended before step %d\n", step_drawn);
    return count > 0 && comm_rank(world) == 0;
}

static const char *ms_text(double seconds)      /* without the unit */
{
    return seconds >= 1 ? number_text(llround(1e3 * seconds)) : format_text("%.3g", 1e3 * seconds);
}

/* ---- Two writers ---- */

/* The pieces of a picture, in the order in which they are written. Only an SVG uses x and y. */
typedef struct {
    void (*title)(const char *ms, int height);
    void (*legend)(Kind k, int x);
    void (*lane)(const char *rank, const char *name, int y);
    void (*run)(Kind k, int x, int y, int width);               /* `width` cells of one kind */
    void (*end)(const char *half_ms, const char *ms);           /* of the step */
} Writer;

static int cells;                           /* across: characters, or pixels of an SVG */
static bool color;                          /* of a terminal; false: letters alone */
static FILE *file;                          /* of an SVG */

static void terminal_title(const char *ms, int height)
{
    (void)height;
    printf("step %d, %s ms", step_drawn, ms);
    if (wanted_cell > 0)
        printf(", %s ms a letter", ms_text(cell));
}

/* Waiting is drawn faint, which suits dark and light terminals. */
static void terminal_run(Kind k, int x, int y, int width)
{
    const int rgb = kinds[k].color;

    (void)x, (void)y;
    if (color && k == WAITING)
        printf("\033[0;2m");
    else if (color && k)
        printf("\033[0;30;48;2;%d;%d;%dm", rgb >> 16, rgb >> 8 & 255, rgb & 255);   /* black on the kind's color */
    for (int i = 0; i < width; i++)
        putchar(kinds[k].meaning[0]);
    printf("%s", color && k ? "\033[0m" : "");
}

static void terminal_legend(Kind k, int x)
{
    printf("  ");
    terminal_run(k, x, 0, 1);
    printf(" %s", kinds[k].meaning + 2);
}

static void terminal_lane(const char *rank, const char *name, int y)
{
    (void)y;
    printf("\n%-8s%-10s", rank, name);
}

static void terminal_end(const char *half_ms, const char *ms)
{
    printf("\n%-*s0%*s%*s\n", LABEL, "ms", cells / 2, half_ms, cells - cells / 2 - 1, ms);
}

static void svg_title(const char *ms, int height)
{
    fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 930 %d\" font-family=\"sans-serif\" "
            "font-size=\"10\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n<text x=\"4\" y=\"15\">step "
            "%d, %s ms</text>", height, step_drawn, ms);
}

static void svg_run(Kind k, int x, int y, int width)
{
    if (k)
        fprintf(file, "\n<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"10\" fill=\"#%06x\"/>", x, y, width,
                kinds[k].color);
}

static void svg_legend(Kind k, int x)
{
    svg_run(k, x, 6, 10);
    fprintf(file, "<text x=\"%d\" y=\"15\">%s</text>", x + 14, kinds[k].meaning + 2);
}

static void svg_lane(const char *rank, const char *name, int y)
{
    fprintf(file, "\n<text x=\"4\" y=\"%d\">%s</text><text x=\"54\" y=\"%d\">%s</text>", y + 9, rank, y + 9, name);
}

static void svg_end(const char *half_ms, const char *ms)
{
    (void)half_ms, (void)ms;                    /* the title shows the time; there is no axis */
    fprintf(file, "\n</svg>\n");
}

static const Writer terminal = {terminal_title, terminal_legend, terminal_lane, terminal_run, terminal_end};
static const Writer svg = {svg_title, svg_legend, svg_lane, svg_run, svg_end};
static const Writer *writer;

/* ---- The picture ---- */

int timeline_open(int first_step)
{
    char *end = "";
    long step = options.steps;

    if (!options.timeline || options.steps <= first_step)
        return 0;
    const size_t length = strlen(options.timeline);
    const bool to_file = length > 4 && !strcmp(options.timeline + length - 4, ".svg");
    writer = to_file ? &svg : &terminal;
    if (*options.timeline && !to_file) {
        const double number = strtod(options.timeline, &end);
        if (!strcmp(end, "ms") && number > 0 && number < INFINITY)
            wanted_cell = number / 1e3, end = "";
        else
            step = strtol(options.timeline, &end, 10);
    }
    if (*end || step <= first_step || step > options.steps)
        fail_usage("--timeline: expected a step from %d to %d, milliseconds per letter such as 30ms, a file named "
                   "*.svg, or nothing, got '%s'", first_step + 1, options.steps, options.timeline);
    output_check("timeline", to_file ? options.timeline : NULL, "<svg");
    return step_drawn = step;
}

/* The lane of a rank's box `first`, and of later ones. A cell shows what fills most of it. */
static void draw_lane(int rank, const Box *first, int y)
{
    struct { double share[KINDS]; Kind most; } at[CELLS] = {0};

    for (const Box *b = first; b->kind; b++)
        for (int i = (b->begin - begin) / cell; b->lane == first->lane && i < cells && begin + i * cell < b->end; i++) {
            const double from = begin + i * cell, seconds = fmin(b->end, from + cell) - fmax(b->begin, from);
            at[i].share[b->kind] += seconds;
            at[i].share[WAITING] -= b->kind == WAITING ? 0 : seconds;
        }
    for (int i = 0; i < cells; i++)
        for (Kind k = FORWARD; k < KINDS; k++)
            at[i].most = at[i].share[k] > at[i].share[at[i].most] ? k : at[i].most;
    writer->lane(first->lane ? "" : format_text("rank %d", rank), strchr(first->name, ' ') + 1, y);
    for (int i = 0, n; i < cells; i += n) {
        for (n = 1; i + n < cells && at[i + n].most == at[i].most; )
            n++;
        writer->run(at[i].most, 120 + i, y, n);
    }
}

/* "computes 71%, waits 29% (all_reduce dp 20%, recv pp 9%), hides 0.8 of 1.1 ms", of transfers. Between operators it
 * waits for the transfer that ends first, counted even from before this starts, because another rank may be late; then
 * for the next. */
static void print_shares(int rank, Box *step)
{
    const double all = step->end - step->begin;
    double computed = 0, in_flight = 0, exposed = 0;
    Box *most;
    int causes = 0;

    for (Box *b = step, *next; b->kind; b = next) {             /* the step, then operators */
        for (next = b + 1; next->kind == TRANSFER; next++)
            in_flight += next->end - next->begin;
        const double from = b == step ? b->begin : b->end, to = next->kind ? next->begin : step->end;
        double at = from;
        for (const Box *t = b + 1; t->kind && from < to; t++) {
            const double end = fmin(t->end, to);
            if (t->kind != TRANSFER || t->begin > end)
                continue;
            for (most = step; strcmp(most->name, t->name); )
                most++;
            most->waited += end - at;
            exposed += end - fmax(t->begin, from);
            at = end;
        }
        computed += next->end - next->begin;
    }
    printf("rank %-3dcomputes %.0f%%, waits %.0f%%", rank, 100 * computed / all, 100 - 100 * computed / all);
    for (; causes < 2; causes++, most->waited = 0) {
        for (Box *b = most = step; b->kind; b++)
            most = b->waited > most->waited ? b : most;
        if (most->waited < 0.01 * all)
            break;
        printf("%s%s %.0f%%", causes ? ", " : " (", most->name, 100 * most->waited / all);
    }
    printf("%s", causes ? ")" : "");
    printf(in_flight > 0 ? ", hides %s of %s ms\n" : "\n", ms_text(in_flight - exposed), ms_text(in_flight));
}

/* Chooses the writer's size and color. */
static void open_writer(void)
{
    const char *forced = getenv("CLICOLOR_FORCE"), *columns = getenv("COLUMNS");
    struct winsize window = {0};

    if (writer == &svg) {
        cells = 800;
        file = output_open("timeline", options.timeline, true);
        return;
    }
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) || !window.ws_col)
        window.ws_col = columns && atoi(columns) > 0 ? atoi(columns) : 100;
    cells = fmin(CELLS, fmax(20, window.ws_col - LABEL));
    color = !getenv("NO_COLOR") && (print_to_terminal() || (forced && atoi(forced)));
}

void timeline_draw(void)
{
    const int n = comm_size(world);
    const Box *lanes[SHOWN * LANES] = {0};      /* the first box of each; NULL: the rank has no such lane */
    double end = 0, seconds[KINDS] = {0}, busy = 0;
    int rows = 0, y = LANE_HEIGHT;

    if (!step_drawn || !gather_boxes())
        return;
    for (const Box *b = boxes; b < boxes + n * stride; b++) {
        const int64_t i = (b - boxes) / stride * LANES + b->lane;
        begin = fmin(begin, b->kind == WAITING ? b->begin : INFINITY);
        end = fmax(end, b->kind == WAITING ? b->end : 0);
        seconds[b->kind] += b->end - b->begin;
        if (i < SHOWN * LANES && !lanes[i])
            lanes[i] = b, rows++;
    }
    open_writer();
    cell = fmax(wanted_cell, (end - begin) / cells);
    cells = fmin(cells, ceil((end - begin) / cell));
    writer->title(ms_text(end - begin), LANE_HEIGHT * (rows + 3));
    for (int k = FORWARD, x = 120; k < KINDS; k++)
        if (seconds[k] > 0) {
            writer->legend(k, x);
            x += 5 * strlen(kinds[k].meaning) + 26;
            busy += k < TRANSFER ? seconds[k] : 0;
        }
    for (int i = 0; i < SHOWN * LANES; i++)
        if (lanes[i])
            draw_lane(i / LANES, lanes[i], y += LANE_HEIGHT);
    writer->end(ms_text((end - begin) / 2), ms_text(end - begin));
    if (file)
        output_close("timeline", options.timeline, file);
    for (int r = 0; r < n && r < SHOWN; r++)
        print_shares(r, boxes + r * stride);
    if (n > 1)
        printf("idle over busy time of %s%d ranks: %.3f\n", n > SHOWN ? "all " : "", n, seconds[WAITING] / busy - 1);
}
