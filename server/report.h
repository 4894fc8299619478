/* report.h - what a worker says with a heartbeat or a release.
 *
 * Position, metrics, memory samples, log lines, odd records: the part that both
 * bodies of schema/wire.h share, checked field by field before anything is
 * written. Strings and lists are borrowed from the request's JSON. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"

struct position {
    bool given;
    int64_t step, epoch, records, micro_batches; /* totals of the cycle */
};

struct report {
    const char *stage; /* heartbeat: load, first_step, train, validate, save */
    int64_t seq;       /* heartbeat; 0 in a release */
    struct position position;
    double records_per_s;  /* < 0: not given */
    const json_t *metrics; /* [[step, {series: value}], …] or NULL */
    const json_t *memory;  /* [{…}, …] or NULL */
    const json_t *logs;
    int64_t skipped; /* bad records left out so far; -1: not given */
    const json_t *bad;
    int64_t renormalised;   /* policies so far; -1: not given */
    const json_t *exceeded; /* {dimension: {"count", "longest"}} or NULL */
};

enum outcome { OUTCOME_FINISHED, OUTCOME_YIELDED, OUTCOME_FAILED };

struct release {
    enum outcome outcome;
    const char *reason, *detail; /* NULL when absent */
    struct report report;
    struct {
        bool given, final;
        const char *code, *detail, *shard, *field, *stage;
        int64_t line, offset;   /* -1: not given */
        int64_t checkpoint;     /* one that did not verify; 0: none */
        int64_t bytes, missing; /* no room: what the state takes; 0: no word */
    } error;
    const json_t *error_json;
};

/* Bodies as they come. *ret_token is the lease's. ERR_INVALID with a pointer.
 */
int report_parse(const json_t *body, int64_t *ret_token, struct report *ret,
                 struct err *err);
/* at: "" for a release's own body, "/release" inside a checkpoint's (which has
 * its token outside: ret_token NULL). */
int release_parse(const json_t *body, const char *at, int64_t *ret_token,
                  struct release *ret, struct err *err);
const char *outcome_word(enum outcome o);
