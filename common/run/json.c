#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/error.h"

cJSON *json_read(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;

    if (!f)
        fail("%s: %s", path, strerror(errno));
    cJSON *json = getdelim(&text, &capacity, 0, f) > 0 ? cJSON_Parse(text) : NULL;
    if (!cJSON_IsObject(json))
        fail("%s: not a JSON object", path);
    free(text);
    fclose(f);
    return json;
}

void json_write(const char *path, cJSON *json)
{
    char *text = cJSON_Print(json);
    FILE *f = fopen(path, "w");

    if (!f || fputs(text, f) < 0 || fflush(f) || fsync(fileno(f)) || fclose(f))
        fail("%s could not be written: %s", path, strerror(errno));
    free(text);
    cJSON_Delete(json);
}

int64_t json_integer(const cJSON *json, const char *path, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);

    if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 0x1p53
        || item->valuedouble != floor(item->valuedouble))
        fail("%s: \"%s\": expected an integer from 0 to 2^53, got %s", path, name,
             item ? cJSON_PrintUnformatted(item) : "nothing");
    return item->valuedouble;
}
