/* err.h - what went wrong, in one sentence a person can act on.
 *
 * Calls that can fail return an int: negative is one of the codes below, 0 is
 * fine or nothing there, positive is a count. The last parameter takes the
 * sentence and, where the input is to blame, the place: a JSON pointer for a
 * spec or a request, shard, line, offset and field for a record. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum err_code {
    ERR_INVALID = -1,      /* bad input: pointer says where      400 */
    ERR_UNAUTHORIZED = -2, /* no or wrong token                  401 */
    ERR_FORBIDDEN = -3,    /* not from here                      403 */
    ERR_NOT_FOUND = -4,    /*                                    404 */
    ERR_CONFLICT = -5,     /* state forbids it                   409 */
    ERR_STALE = -6,        /* an old lease token                 409 */
    ERR_TOO_LARGE = -7,    /* over a limit                       413 */
    ERR_MEDIA = -8,        /* content type or encoding           415 */
    ERR_MISMATCH = -9,     /* same idempotency key, other body   422 */
    ERR_BUSY = -10,        /* try again later                    503 */
    ERR_NOSPACE = -11,     /* disk full                          507 */
    ERR_IO = -12,          /* disk                               500 */
    ERR_DB = -13,          /* SQLite                             500 */
    ERR_NOMEM = -14,       /* host memory                        500 */
    ERR_DATA = -15,        /* a record or shard; see where           */
    ERR_CORRUPT = -16,     /* a checkpoint that does not verify      */
    ERR_TORCH = -17,       /* libtorch                               */
    ERR_OOM = -18,         /* device or host memory, in training     */
    ERR_NET = -19,         /* the server cannot be reached           */
    ERR_NOT_FINITE = -20,  /* loss is NaN or infinite                */
    ERR_PRECONDITION = -21, /* If-Match does not match           412 */
    ERR_RANGE = -22,       /* Range cannot be satisfied          416 */
};

struct err {
    int code;
    char text[768];
    char pointer[192]; /* JSON pointer of the field, "" if none; or the bare
                        * name of a query parameter */
    /* where in the data; line < 1 when no record is to blame */
    char shard[160], field[96];
    int64_t line, offset;
    int64_t missing_bytes; /* on a full disk; 0: not known */
};

/* Fill *err and return code, so that `return err_set(...)` reads well.
 * err may be NULL. Clears pointer and place. */
int err_set(struct err *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, for a field of a JSON document. */
int err_at(struct err *err, int code, const char *pointer, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* "ERR_STALE" → "stale": the `code` word of problem+json and of releases. */
const char *err_word(int code);

#ifdef __cplusplus
}
#endif
