/* feed_simdjson.h - what bench_feed compares with: simdjson alone, reading every
 * value of a chess-like record into flat arrays, without a check. */
#pragma once
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The text ends with 64 readable bytes behind it. Each returns the count of
 * numbers read, so that nothing is left out. */
long bare_ondemand(const char *line, size_t len); /* by the on-demand API */
long bare_dom(const char *line, size_t len);      /* parsed into a tree, read */

#ifdef __cplusplus
}
#endif
