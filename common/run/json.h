/* JSON files: one object each. Errors end the program, and name the file. */
#ifndef JSON_H
#define JSON_H

#include <cjson/cJSON.h>
#include <stdint.h>

cJSON *json_read(const char *path);                             /* the caller deletes it */

/* Writes `json` and deletes it; returns when the file has reached the disk. */
void json_write(const char *path, cJSON *json);

/* Returns the member of this name, which must be an integer from 0 to 2^53. path: for the error. */
int64_t json_integer(const cJSON *json, const char *path, const char *name);

#endif
