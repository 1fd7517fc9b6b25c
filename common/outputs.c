#include "outputs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm.h"
#include "error.h"

static bool is_file(const char *path)           /* or not there yet; a link, such as /dev/stdout, is none */
{
    struct stat s;

    return lstat(path, &s) || S_ISREG(s.st_mode);
}

void output_check(const char *option, const char *path, const char *beginning)
{
    char start[64] = "";

    if (!path || comm_rank(world) || !is_file(path))
        return;
    FILE *f = fopen(path, "r");
    const size_t length = f ? fread(start, 1, sizeof start, f) : 0;
    if (f)
        fclose(f);
    if (length && !memmem(start, length, beginning, strlen(beginning)))
        fail("--%s %s: expected a new file or an earlier one of this option, but the first bytes of this one have no %s; "
             "use another name, or remove it", option, path, beginning);
    char *writing = output_begin(path);
    FILE *out = fopen(writing, "a");
    if (!out || (f && access(path, W_OK)))
        fail("--%s: cannot create %s: %s", option, path, strerror(errno));
    fclose(out);
    unlink(writing);
    free(writing);
}

char *output_begin(const char *path)
{
    char *written = path ? new_text(is_file(path) ? "%s.tmp" : "%s", path) : NULL;

    if (written && strcmp(written, path) && comm_rank(world) == 0)
        unlink(written);                        /* left by a program that was killed */
    return written;
}

void output_end(const char *option, char *written, const char *path)
{
    if (written && comm_rank(world) == 0 && strcmp(written, path) && rename(written, path))
        fail("--%s: %s could not be renamed to %s: %s", option, written, path, strerror(errno));
    free(written);
}
