/* The book's pages read no JSON files. */
typedef struct cJSON cJSON;
