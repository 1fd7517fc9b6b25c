#include "outputs.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../comm/comm.h"
#include "../base/error.h"

static bool is_file(const char *path)           /* or not there yet; a link, such as /dev/stdout, is none */
{
    struct stat s;

    return lstat(path, &s) || S_ISREG(s.st_mode);
}

void output_check(const char *option, const char *path, const char *beginning)
{
    char start[64];

    if (!path || comm_rank(world) || !is_file(path))
        return;
    const bool is_new = access(path, F_OK);
    FILE *f = fopen(path, "a+");
    if (!f)
        fail("--%s: cannot create %s: %s", option, path, strerror(errno));
    const size_t length = fread(start, 1, sizeof start, f);
    fclose(f);
    if (length && !memmem(start, length, beginning, strlen(beginning)))
        fail("--%s %s: expected a new file or an earlier one of this option, but the first bytes of this one have no "
             "%s; use another name, or remove it", option, path, beginning);
    if (is_new)
        unlink(path);                           /* a run that fails leaves none */
}

FILE *output_open(const char *option, const char *path, bool first)
{
    const bool file = is_file(path);
    FILE *f = fopen(path, "a");

    if (!f)
        fail("--%s %s cannot be written: %s", option, path, strerror(errno));
    if (file && flock(fileno(f), LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)    /* some file systems have no locks */
        fail("--%s %s: another run is writing to it; use another name", option, path);
    if (file && first && ftruncate(fileno(f), 0))
        fail("--%s %s cannot be emptied: %s", option, path, strerror(errno));
    return f;
}

void output_close(const char *option, const char *path, FILE *f)
{
    if (ferror(f) | fclose(f))
        fail("--%s %s could not be written: %s", option, path, strerror(errno));
}
