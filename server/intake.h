/* intake.h - the text of a shard as it streams by: what is known of it after.
 *
 * One pass takes its size, lines and records, SHA-256 of the whole and of each
 * block, and an index of where each record begins; where rules are given, each
 * record is decoded by them. Uploads take this way, and files that are read in
 * place. No more is held of the text than a line that goes over a piece's
 * end. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "schema/record_desc.h"

/* What records must look like. */
struct intake_rules {
    struct record_desc record;
    double policy_tolerance;
    bool skip;               /* count those that do not fit; else refuse */
    char digest[DIGEST_HEX]; /* of all of the above */
};
/* `record` as in a spec, found at /record. ERR_INVALID. */
int intake_rules_make(const json_t *record, bool skip, double policy_tolerance,
                      struct intake_rules **ret, struct err *err);
void intake_rules_free(struct intake_rules *r);

#define INTAKE_BAD_SHOWN 20

struct intake {
    int64_t bytes, lines, records; /* bad ones among them */
    char sha256[DIGEST_HEX];       /* set by intake_end */
    char (*blocks)[DIGEST_HEX]; /* of WIRE_BLOCK_BYTES each, the last short */
    size_t n_blocks;
    int64_t bad;              /* records that do not fit the rules */
    json_t *bad_first;        /* [{line, offset, field, reason}] */
    struct intake_lines *its; /* intake.c's own */
};

/* index_path: where to write the index, in a folder that exists; NULL: none.
 * The rules (NULL: none) must outlive it. */
int intake_new(const char *index_path, const struct intake_rules *rules,
               struct intake **ret, struct err *err);
/* ERR_DATA with line, offset and field: a record does not fit. Nothing may be
 * added after an error. */
int intake_add(struct intake *t, const char *text, size_t len, struct err *err);
/* Before any is added: the SHA-256 of the whole is taken by the caller, who sets
 * it (sha256) before intake_end. */
void intake_digest_elsewhere(struct intake *t);
/* The text has ended; its last line may lack its end. */
int intake_end(struct intake *t, struct err *err);
/* Lines until now, without one that has no end yet: where data ends in a file
 * that still grows. */
int64_t intake_ended_bytes(const struct intake *t);
/* After intake_end: make the index DIR/index/<sha256>, replacing one that is
 * there. */
int intake_publish(struct intake *t, const char *dir, struct err *err);
/* Bytes it holds, but for the decoder's, which are of a record's size. */
size_t intake_memory(const struct intake *t);
void intake_free(struct intake *t); /* the index too, unless it was published */
