/* What collectives take: the table of times, the fit of a hop's latency and bandwidth, --machine. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "measure.h"

enum { ROWS = 32 };

/* Returns the seconds of one call on the slowest rank, in the fastest of ten rounds: what else this machine does only
 * slows a round down. */
static double seconds_of(void (*run)(Comm *, Tensor), Comm *c, Tensor t)
{
    const int calls = tensor_bytes(t) < 100000 ? 10 : 1;
    double fastest = INFINITY, all[comm_size(c)];

    for (int k = 0; k < 10; k++) {
        comm_barrier(c);
        const double begin = comm_clock();
        for (int i = 0; i < calls; i++)
            run(c, t);
        device_wait();
        const double mine = (comm_clock() - begin) / calls;
        comm_gather_host(c, all, &mine, sizeof mine);
        for (int r = 1; r < comm_size(c); r++)
            all[0] = fmax(all[0], all[r]);
        fastest = fmin(fastest, all[0]);
    }
    return fastest;
}

double bus_factor(const char *name, int n)
{
    return !strcmp(name, "all_reduce") ? 2.0 * (n - 1) / n
         : strstr("reduce_scatter all_gather all_to_all gather scatter", name) && strcmp(name, "reduce")
         ? (n - 1.0) / n : 1;
}

typedef struct { double alpha, beta, residual; } Fit;       /* seconds, bytes/s, mean relative error */

/* Fits seconds = hops * alpha + bytes * volume / beta, by least squares of relative errors: otherwise the largest sizes
 * alone would count. One size of bytes cannot tell the two apart: then alpha is NaN. */
static Fit fit_of(const double *bytes, const double *seconds, int rows, Steps s)
{
    double aa = 0, ab = 0, bb = 0, ay = 0, by = 0;
    Fit f = {0};

    for (int i = 0; i < rows; i++) {
        const double a = s.hops / seconds[i], b = s.volume * bytes[i] / seconds[i];
        aa += a * a, ab += a * b, bb += b * b, ay += a, by += b;
    }
    const double determinant = aa * bb - ab * ab;
    f.alpha = rows < 2 && s.volume > 0 ? NAN : determinant ? (ay * bb - by * ab) / determinant : ay / aa;
    f.beta = determinant ? determinant / (by * aa - ay * ab) : INFINITY;
    for (int i = 0; i < rows; i++)
        f.residual += fabs((s.hops * f.alpha + s.volume * bytes[i] / f.beta) / seconds[i] - 1) / rows;
    return f;
}

static void draw(const char *figure, const char *name, const double *bytes, double seconds[][ROWS],
                 const Column *column, int columns, int rows)
{
    if (comm_rank(world))
        return;
    FILE *f = popen("gnuplot", "w");
    signal(SIGPIPE, SIG_IGN);                           /* gnuplot may be missing, or end early */
    fprintf(f, "set terminal svg size 700,420 background '#ffffff'\nset output '%s'\nset logscale xy\n"
            "set key left top\nset title '%s, %d ranks'\nset xlabel 'bytes'\nset ylabel 'microseconds'\nplot ",
            figure, name, comm_size(world));
    for (int k = 0; k < columns; k++)
        fprintf(f, "%s'-' with linespoints pt 7 ps 0.4 title '%s'", k ? ", " : "", column[k].label);
    for (int k = 0; k < columns; k++) {
        fprintf(f, "\n");
        for (int i = 0; i < rows; i++)
            fprintf(f, "%g %g\n", bytes[i], 1e6 * seconds[k][i]);
        fprintf(f, "e");
    }
    fprintf(f, "\n");
    if (pclose(f))
        fail("--plot %s: gnuplot could not draw it; is it installed (make deps)?", figure);
}

/* Returns the size from which on a is slower than b, by a power law between two sizes; NAN: there is none. */
static double crossing(const double *bytes, const double *a, const double *b, int rows)
{
    double at = NAN;

    for (int i = 1; i < rows; i++)
        if (a[i - 1] <= b[i - 1] && a[i] > b[i]) {
            const double before = log(b[i - 1] / a[i - 1]), after = log(a[i] / b[i]);
            at = bytes[i - 1] * pow(bytes[i] / bytes[i - 1], before / (before + after));
        }
    return at;
}

void measure_table(const char *name, const Column *column, int ours, Tensor t, int64_t min, int64_t max,
                   const char *plot)
{
    const int n = comm_size(world), columns = column[ours].run ? ours + 1 : ours;
    double seconds[columns][ROWS], bytes[ROWS];
    int rows = 0;
    Fit fit[ours];

    print_rank_0("%s: microseconds; GB/s of the tensor (alg) and of each link (bus)\n%12s", name, "bytes");
    for (int k = 0; k < columns; k++)
        print_rank_0("%11s   alg   bus", column[k].label);
    print_rank_0("\n");
    for (double size = min; size <= max && rows < ROWS; size *= 2, rows++) {
        int64_t count = size / dtype_size(REAL);
        count = count < 1 ? 1 : strcmp(name, "all_to_all") ? count : (count + n - 1) / n * n;
        bytes[rows] = count * dtype_size(REAL);
        print_rank_0("%12.0f", bytes[rows]);
        for (int k = 0; k < columns; k++) {
            const double s = seconds_of(column[k].run, world, tensor_range(t, 0, count));
            seconds[k][rows] = s;
            print_rank_0("%11.1f %5.2f %5.2f", 1e6 * s, bytes[rows] / s / 1e9,
                         bytes[rows] / s / 1e9 * bus_factor(name, n));
        }
        print_rank_0("\n");
    }
    for (int k = 0; k < ours && n > 1; k++) {
        const Steps s = column[k].steps;
        fit[k] = fit_of(bytes, seconds[k], rows, s);
        if (!(fit[k].alpha > 0 && fit[k].beta > 0)) {
            print_rank_0("%-9s no fit: these sizes do not tell latency from bandwidth\n", column[k].label);
            continue;
        }
        print_rank_0("%-9s %g hops, %.3g of the bytes: alpha %.2f us, beta %.3f GB/s per hop; residual %.1f%%\n",
                     column[k].label, s.hops, s.volume, 1e6 * fit[k].alpha, fit[k].beta / 1e9, 100 * fit[k].residual);
    }
    for (int k = 1; k < ours && n > 1; k++) {
        const Steps ring = column[0].steps, other = column[k].steps;
        const double more = other.volume - ring.volume, saved = ring.hops - other.hops;
        if (more <= 0 || saved <= 0 || !(fit[0].alpha > 0 && fit[0].beta > 0))
            continue;
        const double at = crossing(bytes, seconds[k], seconds[0], rows);
        print_rank_0("ring passes %s at %s; by the ring's alpha and beta at %s\n", column[k].label,
                     isnan(at) ? "no size here" : bytes_text(at),
                     bytes_text(saved * fit[0].alpha * fit[0].beta / more));
    }
    if (plot)
        draw(plot, name, bytes, seconds, column, columns, rows);
}

/* ---- --machine ---- */

/* Fits a hop in which all ranks of a group send to the next rank at the same time. */
static Fit hop_fit(void (*shift)(Comm *, Tensor), Comm *c, Tensor t, int64_t max)
{
    double bytes[ROWS], seconds[ROWS];
    int rows = 0;

    for (double size = 8; size <= max && rows < ROWS; size *= 4, rows++) {
        bytes[rows] = size;
        seconds[rows] = seconds_of(shift, c, tensor_range(t, 0, size / dtype_size(REAL)));
    }
    return fit_of(bytes, seconds, rows, (Steps){.hops = 1, .volume = 1});
}

static double matmul_flops(DType dtype)
{
    enum { CALLS = 8 };
    /* On a GPU a small one would measure launches. Simulated, any size has the same rate: one of 20 ms. */
    const int64_t side = options.pretend ? cbrt(0.01 * options.pretend_flops) : device_is_host() ? 512 : 4096;
    Tensor m[3];
    double best = 0;

    for (int i = 0; i < 3; i++)
        m[i] = tensor_create(MEM_WORKSPACE, dtype, "matrix", shape(side, side));
    for (int k = 0; k < 4; k++) {
        device_wait();
        const double begin = clock_seconds();
        for (int i = 0; i < CALLS; i++)
            linear_forward(m[0], m[1], m[2], NONE);
        device_wait();
        best = fmax(best, CALLS * 2.0 * side * side * side / (clock_seconds() - begin));
    }
    for (int i = 0; i < 3; i++)
        tensor_free(&m[i], MEM_WORKSPACE);
    return best;
}

static double memory_rate(int64_t bytes)
{
    Tensor to = tensor_create(MEM_WORKSPACE, REAL, "copy", shape(bytes / dtype_size(REAL)));
    Tensor from = tensor_create(MEM_WORKSPACE, REAL, "copied", shape(bytes / dtype_size(REAL)));
    double best = 0;

    for (int k = 0; k < 4; k++) {
        device_wait();
        const double begin = clock_seconds();
        tensor_copy(to, from);
        device_wait();
        best = fmax(best, 2.0 * tensor_bytes(to) / (clock_seconds() - begin));
    }
    tensor_free(&to, MEM_WORKSPACE);
    tensor_free(&from, MEM_WORKSPACE);
    return best;
}

void measure_machine(const char *path, void (*shift)(Comm *, Tensor), Comm **links, Comm *between, Tensor t,
                     int64_t max)
{
    static const struct { DType dtype; const char *name; } types[] = {{REAL, REAL == F64 ? "fp64" : "fp32"},
                                                                      {BF16, "bf16"}, {F16, "fp16"}};
    const int n = comm_size(world);
    const char *before = "";
    char *text;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    fprintf(f, "{\"name\": \"%s\",\n \"gpu\": %s,\n \"gflops\": {", device_name(),
            device_is_host() ? "false" : "true");
    for (int i = 0; i < 3; i++)
        if (device_supports(types[i].dtype) == SUPPORT_NATIVE) {
            comm_barrier(world);                        /* all ranks at once, as in a training step */
            fprintf(f, "%s\"%s\": %.4g", before, types[i].name, matmul_flops(types[i].dtype) / 1e9);
            before = ", ";
        }
    comm_barrier(world);
    fprintf(f, "},\n ");
    if (!options.pretend)                               /* simulated memory is never waited for */
        fprintf(f, "\"memory_gb_per_s\": %.4g,\n ", memory_rate(device_is_host() ? 1 << 26 : 1 << 29) / 1e9);
    if (!options.pretend && device_memory_available() > 0)
        fprintf(f, "\"memory_gb\": %.4g,\n ",
                device_memory_available() / 1e9 / (device_is_host() ? comm_local.size : 1));
    fprintf(f, "\"links\": [");
    before = "";
    for (int ranks = 2; ranks <= n; ranks *= 2, links++) {
        if (*links) {
            const Fit fit = hop_fit(shift, *links, t, max);
            fprintf(f, "%s{\"ranks\": %d, \"alpha_us\": %.4g, \"beta_gb_per_s\": %.4g}", before, ranks, 1e6 * fit.alpha,
                    fit.beta / 1e9);
            before = ", ";
        }
        comm_barrier(world);
    }
    fprintf(f, "]");
    if (between) {
        const Fit fit = hop_fit(shift, between, t, max);
        fprintf(f, ",\n \"between_nodes\": {\"ranks\": %d, \"alpha_us\": %.4g, \"beta_gb_per_s\": %.4g}",
                comm_size(between), 1e6 * fit.alpha, fit.beta / 1e9);
    }
    fprintf(f, "}\n");
    fclose(f);
    if (comm_rank(world) == 0) {
        FILE *file = output_open("machine", path, true);
        fputs(text, file);
        output_close("machine", path, file);
    }
    print_rank_0("%swrote %s\n", text, path);
    free(text);
}
