/* rfc3339.h - times as text: RFC 3339.
 *
 * In milliseconds since 1970. A time without a zone is no time: whoever wrote
 * it and whoever reads it may mean different hours. */
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RFC3339_MAX 32
/* "2026-01-31T12:00:00.000Z"; ms is not negative, and before the year 10000. */
void rfc3339_text(int64_t ms, char out[RFC3339_MAX]);
/* "2026-01-31T13:00:00+01:00", with or without a fraction of a second, of which
 * ms are kept. 0, or -1: not such a time, or one before 1970. */
int rfc3339_parse(const char *text, int64_t *ret_ms);

#ifdef __cplusplus
}
#endif
