#include "schema/err.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Make text that quotes foreign bytes, or was cut within a character, UTF-8:
 * it goes into JSON. */
static void mend(char *s)
{
    unsigned char *p = (unsigned char *)s;
    while (*p) {
        int more = *p < 0x80                 ? 0
                   : *p >= 0xc2 && *p < 0xe0 ? 1
                   : *p >= 0xe0 && *p < 0xf0 ? 2
                   : *p >= 0xf0 && *p < 0xf5 ? 3
                                             : -1;
        int n = 0;
        while (n < more && (p[n + 1] & 0xc0) == 0x80)
            n++;
        if (n != more || (more == 2 && *p == 0xe0 && p[1] < 0xa0) ||
            (more == 2 && *p == 0xed && p[1] >= 0xa0) ||
            (more == 3 && *p == 0xf0 && p[1] < 0x90) ||
            (more == 3 && *p == 0xf4 && p[1] >= 0x90)) {
            *p++ = '?';
            continue;
        }
        p += more + 1;
    }
}

static int fill(struct err *err, int code, const char *pointer, const char *fmt,
                va_list ap)
{
    if (!err)
        return code;

    /* Arguments may be parts of *err itself: write aside, then copy. */
    char text[sizeof err->text], at[sizeof err->pointer];
    vsnprintf(text, sizeof text, fmt, ap);
    snprintf(at, sizeof at, "%s", pointer);
    mend(text);
    mend(at);
    *err = (struct err){.code = code};
    memcpy(err->text, text, sizeof text);
    memcpy(err->pointer, at, sizeof at);
    return code;
}

int err_set(struct err *err, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, "", fmt, ap);
    va_end(ap);
    return code;
}

int err_at(struct err *err, int code, const char *pointer, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, pointer, fmt, ap);
    va_end(ap);
    return code;
}

const char *err_word(int code)
{
    switch (code) {
    case ERR_INVALID:
        return "invalid";
    case ERR_UNAUTHORIZED:
        return "unauthorized";
    case ERR_FORBIDDEN:
        return "forbidden";
    case ERR_NOT_FOUND:
        return "not_found";
    case ERR_CONFLICT:
        return "conflict";
    case ERR_STALE:
        return "stale";
    case ERR_TOO_LARGE:
        return "too_large";
    case ERR_MEDIA:
        return "media";
    case ERR_MISMATCH:
        return "mismatch";
    case ERR_BUSY:
        return "busy";
    case ERR_NOSPACE:
        return "no_space";
    case ERR_IO:
        return "io";
    case ERR_DB:
        return "db";
    case ERR_NOMEM:
        return "nomem";
    case ERR_DATA:
        return "data";
    case ERR_CORRUPT:
        return "corrupt";
    case ERR_TORCH:
        return "torch";
    case ERR_OOM:
        return "oom";
    case ERR_NET:
        return "net";
    case ERR_NOT_FINITE:
        return "not_finite";
    case ERR_PRECONDITION:
        return "precondition";
    case ERR_RANGE:
        return "range";
    }
    return code < 0 ? "unknown" : "ok";
}
