/* json_read.h - JSON from outside: parse it strictly, read it field by field.
 *
 * json_parse_strict is the one way in for text; a reader then takes the fields
 * of one object. A reader keeps the first error and the JSON pointer of its
 * place, and its getters go on returning fallbacks after an error, so code
 * reads straight down and asks once at the end:
 *
 *     struct json_read r;
 *     json_read_open(&r, value, "/model/dropout", err, "rate", "kind", NULL);
 *     double rate = json_read_real(&r, "rate", 0, 1, 0.1);
 *     const char *kind = json_read_string(&r, "kind", 64, "plain");
 *     if (r.r < 0)
 *         return r.r;
 *
 * A field that is null counts as absent. Fields not named at open are refused
 * by name, before anything is read. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define JSON_DEPTH_MAX 64
#define JSON_INT_MAX 9007199254740991 /* 2^53 - 1: what every client can hold  \
                                       */

/* Parse one JSON text. Refuses, as ERR_INVALID with line and column: nesting
 * deeper than JSON_DEPTH_MAX (found without recursion), a repeated key (named,
 * with its pointer), NUL, bytes that are not UTF-8, numbers that do not fit,
 * text after the value. A UTF-8 mark in front is skipped. Caller owns *ret. */
int json_parse_strict(const char *text, size_t len, json_t **ret,
                      struct err *err);

/* Append the canonical form: keys sorted bytewise, no spaces, reals with the
 * fewest digits that read back the same. 0, or -1 when memory is short. */
int json_canonical(const json_t *value, struct buf *out);
/* The same with keys in their own order: JSON for people and for answers. (What
 * jansson writes has 0.1 as 0.10000000000000001.) */
int json_text(const json_t *value, struct buf *out);

/* The shortest text that reads back as the same real; always has a '.' or an
 * 'e'. The value must be finite. */
#define JSON_REAL_MAX 48
void json_real_text(double v, char out[JSON_REAL_MAX]);

struct json_read {
    const json_t *object; /* NULL after an error at open */
    const char *at;       /* its JSON pointer; must outlive the reader */
    int r;                /* 0, or the first error's code */
    struct err *err;
};

/* Begin to read `value`, which must be an object with no other fields than
 * those named, up to NULL. NULL or null stands for an empty object. Returns
 * r->r. */
int json_read_open(struct json_read *r, const json_t *value, const char *at,
                   struct err *err, ...) __attribute__((sentinel));
/* The same for an object whose keys are free. */
int json_read_open_any(struct json_read *r, const json_t *value, const char *at,
                       struct err *err);
/* The field, or NULL when it is absent or null. */
const json_t *json_read_get(struct json_read *r, const char *name);
/* Refuse when the field is absent. */
void json_read_need(struct json_read *r, const char *name);

/* Getters: the value, or the fallback when the field is absent or at fault.
 * Bounds include both ends. Integers must be written as such. */
int64_t json_read_int(struct json_read *r, const char *name, int64_t min,
                      int64_t max, int64_t fallback);
double json_read_real(struct json_read *r, const char *name, double min,
                      double max, double fallback);
bool json_read_bool(struct json_read *r, const char *name, bool fallback);
/* 1 … max bytes; borrowed. */
const char *json_read_string(struct json_read *r, const char *name, size_t max,
                             const char *fallback);
/* Index of the field's word in `words` (NULL-terminated). */
int json_read_word(struct json_read *r, const char *name,
                   const char *const *words, int fallback);
/* An object or array below, for its own reader or loop; NULL when absent. */
const json_t *json_read_object(struct json_read *r, const char *name);
const json_t *json_read_array(struct json_read *r, const char *name,
                              size_t max);

/* Labels: an object of at most 64 names of 1 to 64 bytes with strings of at most
 * 256. *ret is never NULL on success; the caller owns it. */
#define JSON_LABELS_MAX 64
int json_read_labels(const json_t *in, const char *at, json_t **ret,
                     struct err *err);

/* Record an error at a field of this object ("" is the object itself). The
 * first error stays. Returns r->r. */
int json_read_fail(struct json_read *r, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A pointer one step down: `at`/`name`, with ~ and / escaped. */
#define JSON_POINTER_MAX 192
void json_pointer(char out[JSON_POINTER_MAX], const char *at, const char *name);
void json_pointer_index(char out[JSON_POINTER_MAX], const char *at, size_t i);

#ifdef __cplusplus
}
#endif
