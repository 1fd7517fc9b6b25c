#include "process.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../common/base/device.h"
#include "../../common/base/error.h"
#include "../../common/run/safetensors.h"
#include "../../common/run/saved_steps.h"

/* ---- Files ---- */

static char directory[64];
static pid_t owner;

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *ftw)
{
    (void)s, (void)kind, (void)ftw;
    return remove(path);
}

static void remove_temporary(void)
{
    if (getpid() == owner)
        nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* On Ctrl-C the programs that run get the signal as well, and may write for another moment. */
static void on_signal(int number)
{
    usleep(200000);
    remove_temporary();
    _exit(128 + number);
}

const char *temporary(void)
{
    if (!directory[0]) {
        strcpy(directory, "/tmp/ultrascale.XXXXXX");
        if (!mkdtemp(directory))
            fail("no temporary directory");
        owner = getpid();
        atexit(remove_temporary);
        signal(SIGINT, on_signal);
        signal(SIGTERM, on_signal);
    }
    return directory;
}

const char *in_temporary(const char *format, ...)
{
    static char path[8][256];
    static int next;
    char *p = path[next++ % 8];
    const int length = snprintf(p, sizeof path[0], "%s/", temporary());
    va_list list;

    va_start(list, format);
    vsnprintf(p + length, sizeof path[0] - length, format, list);
    va_end(list);
    return p;
}

void add_text(char *text, size_t size, const char *format, ...)
{
    const size_t length = strlen(text);
    va_list list;

    va_start(list, format);
    vsnprintf(text + length, size - length, format, list);
    va_end(list);
}

static const char *place_of(const char *file)
{
    return *file == '/' ? file : in_temporary("%s", file);
}

const char *saved(const char *directory, const char *file)
{
    const int64_t step = saved_steps_latest(place_of(directory));

    return in_temporary("%s/step-%lld/%s", directory, (long long)step, file);
}

#define SEED 88172645463325252u

/* xorshift (Marsaglia 2003) */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

int64_t random_below(int64_t n)
{
    static uint64_t state = SEED;

    return (next_random(&state) >> 11) % n;
}

const char *token_file(int64_t count, int vocab)
{
    const char *path = in_temporary("tokens_%lld_%d.bin", (long long)count, vocab);
    uint64_t state = SEED;
    FILE *f = fopen(path, "wb");
    if (!f)
        fail("%s: %s", path, strerror(errno));
    for (int64_t i = 0; i < count; i++) {
        const uint16_t token = next_random(&state) % vocab;
        fwrite(&token, sizeof token, 1, f);
    }
    if (fclose(f))
        fail("%s: %s", path, strerror(errno));
    return path;
}

/* ---- Programs ---- */

/* Returns all of a file, from its start, and closes it. */
static char *text_of(FILE *f)
{
    char *text = NULL;
    size_t size = 0;

    rewind(f);
    if (getdelim(&text, &size, 0, f) < 0)               /* it is empty */
        text = strcpy(realloc(text, 1), "");
    fclose(f);
    return text;
}

/* Removes what Open MPI's launcher prints beside the lines of a program that fails: pages between two lines of dashes,
 * and lines that begin with "[host:process]". */
static void remove_pages(char *text)
{
    char *to = text;
    bool page = false;

    for (char *line = text, *end; *line; line = end) {
        const int length = strcspn(line, "\n");
        const char *colon = memchr(line, ':', length), *bracket = memchr(line, ']', length);
        const bool edge = !strncmp(line, "--------------------", 20);
        end = line + length + (line[length] == '\n');
        page ^= edge;
        if (!page && !edge && !(*line == '[' && colon && bracket && colon < bracket)) {
            memmove(to, line, end - line);
            to += end - line;
        }
    }
    *to = 0;
}

/* A test that has joined MPI itself has variables of Open MPI that would confuse the next mpiexec: a program gets those
 * with which the test was started, and what the test has set. */
static void forget_mpi(void)
{
    char name[128];

    for (char **e = environ; *e;) {
        const bool theirs = !strncmp(*e, "PMIX_", 5) || !strncmp(*e, "OMPI_COMM_", 10) || !strncmp(*e, "OMPI_UNIV", 9)
                            || !strncmp(*e, "OMPI_MCA_orte", 13) || !strncmp(*e, "OMPI_MCA_ess", 12);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
        if (theirs)
            unsetenv(name);
        else
            e++;
    }
}

static Result run_list(const char *format, va_list list)
{
    char command[8192], *words[256];
    int count = 0, status;
    Result r = {0};

    if (vsnprintf(command, sizeof command, format, list) >= (int)sizeof command)
        fail("a command of more than %zu characters", sizeof command);
    r.command = strdup(command);
    for (char *at = command; *at;) {
        const char end = *at == '\'' ? *at++ : ' ';
        words[count++] = at;
        at += strcspn(at, end == ' ' ? " " : "'");
        if (*at)
            *at++ = 0;
        at += strspn(at, " ");
    }
    words[count] = NULL;
    FILE *out = tmpfile(), *err = tmpfile();
    if (!out || !err)
        fail("no temporary files: %s", strerror(errno));
    const char *in = temporary();               /* before the fork: child and parent share it */
    const double begin = clock_seconds();
    const pid_t child = fork();
    if (child == 0) {
        dup2(fileno(out), 1), dup2(fileno(err), 2);
        dup2(open("/dev/null", O_RDONLY), 0);
        if (chdir(in))
            _exit(127);
        forget_mpi();
        setenv("GOMP_SPINCOUNT", "3000", 0);    /* the Makefile says why */
        execvp(words[0], words);
        _exit(127);
    }
    waitpid(child, &status, 0);
    r.seconds = clock_seconds() - begin;
    r.out = text_of(out), r.err = text_of(err);
    remove_pages(r.err);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return r;
}

Result run(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    Result r = run_list(format, list);
    va_end(list);
    return r;
}

void run_well(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    Result r = run_list(format, list);
    va_end(list);
    if (r.status) {
        fprintf(stderr, "%s%s", r.out, r.err);
        fail("status %d from %s", r.status, r.command);
    }
    result_free(r);
}

void result_free(Result r)
{
    free(r.out);
    free(r.err);
    free(r.command);
}

/* ---- Output files ---- */

int metrics_columns(const char *file, const char *names[16])
{
    static char line[4096];
    int count = 0;
    FILE *f = fopen(place_of(file), "r");

    if (!f || !fgets(line, sizeof line, f))
        fail("%s has no header", file);
    fclose(f);
    for (char *name = strtok(line, ",\n"); name && count < 16; name = strtok(NULL, ",\n"))
        if (!strstr("seconds tokens_per_second mfu peak_bytes comm_bytes", name))
            names[count++] = name;
    return count;
}

int read_column(const char *file, const char *column, double *values, int most)
{
    char line[4096];
    int at = 0, rows = 0;
    FILE *f = fopen(place_of(file), "r");

    if (!f || !fgets(line, sizeof line, f))
        fail("%s has no header", file);
    char *name = strtok(line, ",\n");
    while (name && strcmp(name, column))
        at++, name = strtok(NULL, ",\n");
    if (!name)
        fail("%s has no column %s", file, column);
    while (rows < most && fgets(line, sizeof line, f)) {
        char *text = line;
        for (int i = 0; i < at; i++)
            text = strchr(text, ',') + 1;
        values[rows++] = strtod(text, NULL);
    }
    fclose(f);
    return rows;
}

char *read_file(const char *file)
{
    FILE *f = fopen(place_of(file), "rb");

    if (!f)
        fail("%s does not exist", file);
    return text_of(f);
}

/* Returns the item at a path like "a.0.b", or NULL. */
static cJSON *json_item(cJSON *json, const char *path)
{
    char names[256];

    snprintf(names, sizeof names, "%s", path);
    for (char *name = strtok(names, "."); name && json; name = strtok(NULL, "."))
        json = cJSON_IsArray(json) ? cJSON_GetArrayItem(json, atoi(name)) : cJSON_GetObjectItem(json, name);
    return json;
}

double json_number(const char *file, const char *format, ...)
{
    char path[256], *text = read_file(file);
    va_list list;

    va_start(list, format);
    vsnprintf(path, sizeof path, format, list);
    va_end(list);
    cJSON *json = cJSON_Parse(text), *item = json_item(json, path);

    if (!cJSON_IsNumber(item))
        fail("%s: no number %s", file, path);
    const double x = item->valuedouble;
    cJSON_Delete(json);
    free(text);
    return x;
}

char *json_text(const char *file, const char *array, int i, const char *name)
{
    char *text = read_file(file), *found = NULL;
    cJSON *json = cJSON_Parse(text), *item = json_item(json, array);

    if (cJSON_IsArray(item) && i < cJSON_GetArraySize(item)) {
        item = cJSON_GetObjectItem(cJSON_GetArrayItem(item, i), name);
        if (!cJSON_IsString(item))
            fail("%s: no string %s.%d.%s", file, array, i, name);
        found = strdup(item->valuestring);
    }
    cJSON_Delete(json);
    free(text);
    return found;
}

static bool is_batch(const SafeTensor *t)
{
    return !strncmp(t->name, "batch.", 6);
}

/* Returns max |a - b| / max |b| of two matrices, or with by_norm |a - b| / |b|; 1 if b is zero and a is not; Inf if
 * either has a NaN or Inf. If `head` (rows per head of q, k or v) is not 0, compares only one of these: of_three = 0, 1
 * or 2. */
static double matrix_difference(const double *a, const double *b, int64_t rows, int64_t cols, int64_t head,
                                int of_three, bool by_norm)
{
    double error = 0, largest = 0, error_square = 0, square = 0;

    for (int64_t i = 0; i < rows; i++) {
        if (head && i / head % 3 != of_three)
            continue;
        for (int64_t j = i * cols; j < (i + 1) * cols; j++) {
            if (!isfinite(a[j]) || !isfinite(b[j]))
                return INFINITY;
            error = fmax(error, fabs(a[j] - b[j]));
            largest = fmax(largest, fabs(b[j]));
            error_square += (a[j] - b[j]) * (a[j] - b[j]);
            square += b[j] * b[j];
        }
    }
    if (error == 0 || square == 0)
        return error > 0;
    return by_norm ? sqrt(error_square / square) : error / largest;
}

/* The difference of tensor y of file b from x of file a, of a QKV tensor the largest of q, k and v; `part` gets its
 * name. Inf: x is missing or has another shape; for tokens also if they differ. */
static double tensor_difference(const Safetensors *a, const SafeTensor *x, const Safetensors *b, const SafeTensor *y,
                                int heads, bool by_norm, const char **part)
{
    static const char *const parts[] = {" (q)", " (k)", " (v)"};
    const int64_t rows = y->shape[0], cols = y->dims > 1 ? y->shape[1] : 1;
    const bool qkv = heads && strstr(y->name, "query_key_value") && rows % (3 * heads) == 0;
    double most = 0;

    *part = qkv ? parts[0] : "";
    if (!x || x->dims != y->dims || memcmp(x->shape, y->shape, sizeof x->shape))
        return INFINITY;
    double *p = malloc(rows * cols * sizeof *p), *q = malloc(rows * cols * sizeof *q);
    safetensors_read(a, x, 0, rows * cols, p);
    safetensors_read(b, y, 0, rows * cols, q);
    if (is_batch(y))
        most = memcmp(p, q, rows * cols * sizeof *p) ? INFINITY : 0;
    for (int k = 0; k < (qkv ? 3 : 1) && !is_batch(y); k++) {
        const double d = matrix_difference(p, q, rows, cols, qkv ? rows / (3 * heads) : 0, k, by_norm);
        if (d > most && qkv)
            *part = parts[k];
        most = fmax(most, d);
    }
    free(p);
    free(q);
    return most;
}

/* batches: compares batch.inputs and batch.targets, too. */
static double compare(const char *file_a, const char *file_b, int heads, bool by_norm, bool batches, char *worst,
                      double *mean)
{
    Safetensors a = safetensors_open(place_of(file_a)), b = safetensors_open(place_of(file_b));
    double most = 0, sum = 0;
    int count = 0;

    for (const SafeTensor *y = b.tensors; y < b.tensors + b.count; y++) {
        if (is_batch(y) && !batches)
            continue;
        const char *part;
        const double d = tensor_difference(&a, safetensors_find(&a, y->name), &b, y, heads, by_norm, &part);
        if (d > most && worst)
            snprintf(worst, 128, "%s%s", y->name, part);
        most = fmax(most, d);
        sum += d, count++;
    }
    safetensors_close(&a);
    safetensors_close(&b);
    if (mean)
        *mean = sum / count;
    return most;
}

double compare_tensors(const char *a, const char *b, int heads, bool by_norm, char *worst)
{
    return compare(a, b, heads, by_norm, false, worst, NULL);
}

double mean_difference(const char *a, const char *b, int heads)
{
    double mean;

    compare(a, b, heads, true, false, NULL, &mean);
    return mean;
}

double compare_gradients(const char *a, const char *b, int heads, char *worst)
{
    return compare(a, b, heads, false, true, worst, NULL);
}

double compare_gradients_by_norm(const char *a, const char *b, int heads, char *worst)
{
    return compare(a, b, heads, true, true, worst, NULL);
}
