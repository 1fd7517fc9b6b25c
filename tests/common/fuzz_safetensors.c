/* Fuzzes the safetensors reader: each input is a file. The reader ends the program with a line, or all that
 * safetensors.h says holds, and reading is safe. */
#include <assert.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../common/error.h"
#include "../../common/safetensors.h"

static jmp_buf refused;

static void end(int status)
{
    longjmp(refused, status);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_bytes)
{
    const int file = memfd_create("fuzz_safetensors", 0);
    char path[32];

    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    assert(write(file, input, input_bytes) == (ssize_t)input_bytes);
    error_set_rank(0, end);
    if (!setjmp(refused)) {
        Safetensors s = safetensors_open(path);
        for (const SafeTensor *t = s.tensors; t < s.tensors + s.count; t++) {
            const int64_t count = t->bytes / (strstr(t->dtype, "64") ? 8 : strstr(t->dtype, "32") ? 4 : 2);
            for (int d = 0; d < t->dims && d < 4; d++)
                assert(t->shape[d] >= 0);
            assert(count >= 0 && t->first_byte >= 8 && t->first_byte + t->bytes <= (int64_t)input_bytes);
            if (!safetensors_is_float(t) && strcmp(t->dtype, "I64"))
                continue;
            void *to = malloc(count * sizeof(double));
            safetensors_read(&s, t, 0, count, to, true);
            free(to);
        }
        safetensors_close(&s);
    }
    close_range(file, ~0u, 0);                  /* also what a refused file leaves open */
    return 0;
}
