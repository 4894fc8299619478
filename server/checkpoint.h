/* checkpoint.h - complete train states: manifests in pawl.db, chunks in
 * checkpoints.db.
 *
 * Chunks are stored first (chunk.h), then one transaction adds the manifest: no
 * manifest, no checkpoint. How long it stays is retention.h's.
 *
 * A checkpoint that does not verify, or that kills whoever loads it twice in a
 * row, is quarantined: kept as evidence, and the cycle goes on from the one
 * before. Whoever finds the damage says so: a worker that loads it, a reader
 * who downloads it, a claim that finds a manifest other than its digest. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/digest.h"
#include "schema/err.h"
#include "server/store.h"

struct spec;

/* ---- making one exist ---- */

struct checkpoint_in {
    const json_t *manifest; /* borrowed */
    char digest[DIGEST_HEX];
    char previous[DIGEST_HEX]; /* "": null */
    char model_sha256[DIGEST_HEX];
    int64_t step, epoch, records, bytes, model_bytes;
    int64_t holds_seq; /* newest hold of the lease when the chunks were seen */
    bool model_checked;
};
/* Check shape, signature, that all chunks are stored, and, for the state that
 * finishes a cycle, that the model is what the manifest says. Reads only:
 * st is pawl.db, chunks checkpoints.db. */
int checkpoint_prepare(struct store *st, struct store *chunks, int64_t lease,
                       int64_t token, const json_t *manifest, bool finishing,
                       struct checkpoint_in *ret, struct err *err);

/* The same check of the model for what a lease saved last, or started from. */
int checkpoint_verify_saved(struct store *st, struct store *chunks,
                            int64_t lease, struct err *err);

struct checkpoint_of { /* whose it is */
    int64_t job, cycle, lease;
    const json_t *fingerprint;
    int64_t exact_since, exact_cycle; /* since -1: bit-exact */
    const char *exact_why;
};
int checkpoint_add(struct store *st, const struct checkpoint_of *of,
                   const struct checkpoint_in *in, int64_t now_ms,
                   int64_t *ret_id, struct err *err);

/* ---- using one ---- */

struct checkpoint {
    int64_t id, job, cycle, step, epoch, records;
    int64_t bytes, model_bytes, load_deaths;
    int64_t exact_since, exact_cycle; /* since -1: bit-exact */
    bool good;
    char digest[DIGEST_HEX], model_sha256[DIGEST_HEX];
    char exact_why[512];
    json_t *manifest, *fingerprint;
};
void checkpoint_release(struct checkpoint *c);
int checkpoint_load(struct store *st, int64_t id, struct checkpoint *ret,
                    struct err *err); /* ERR_NOT_FOUND */
/* Is the manifest what its digest says? */
bool checkpoint_is_whole(const struct checkpoint *c);
/* The newest good one of a cycle whose manifest is whole: 1, or 0. */
int checkpoint_newest(struct store *st, int64_t cycle, struct checkpoint *ret,
                      struct err *err);
/* The id of one that this lease saved already: 1, or 0. */
int checkpoint_find(struct store *st, int64_t lease, const char *digest,
                    int64_t *ret_id, struct err *err);
int checkpoint_quarantine(struct store *st, int64_t id, const char *reason,
                          struct err *err);
/* The same with its event, by whoever found the damage. 1; 0: it was set aside
 * before, or is gone. */
int checkpoint_set_aside(struct store *st, int64_t id, const char *actor,
                         const char *why, int64_t now_ms, struct err *err);
/* Good ones of a cycle newer than `than`, where a claim goes on: it passed them
 * over, for their manifests are damaged. */
int checkpoint_set_aside_newer(struct store *st, int64_t cycle, int64_t than,
                               int64_t now_ms, struct err *err);
/* Another death while loading it; the count in a row, and whether it is good. */
int checkpoint_load_died(struct store *st, int64_t id, int64_t *ret_deaths,
                         bool *ret_good, struct err *err);
/* Its loader was not dead: one death less, and good again if it was set aside
 * for that. */
int checkpoint_load_lives(struct store *st, int64_t id, bool set_aside,
                          struct err *err);
int checkpoint_loaded(struct store *st, int64_t id, struct err *err);

/* As clients see them; "kept" says why each stays (retention.h). */
int checkpoint_list(struct store *st, int64_t job, int64_t after, int64_t limit,
                    json_t **ret, struct err *err);
/* {"id", …, "manifest"} */
int checkpoint_get(struct store *st, int64_t id, json_t **ret, struct err *err);

/* The bytes of a model or a whole state: a header, then chunks. */
struct checkpoint_body;
int checkpoint_body_new(struct store *st, const struct checkpoint *c,
                        bool model, struct checkpoint_body **ret,
                        struct err *err);
int64_t checkpoint_body_id(const struct checkpoint_body *b); /* whose */
int64_t checkpoint_body_bytes(const struct checkpoint_body *b);
/* Is what a read at `offset` needs first there, and whole? ERR_CORRUPT says
 * which chunk is not: to be asked while an answer can still say so. */
int checkpoint_body_check(struct checkpoint_body *b, struct store *chunks,
                          int64_t offset, struct err *err);
int64_t checkpoint_body_read(struct checkpoint_body *b, struct store *chunks,
                             int64_t offset, char *out, size_t len,
                             struct err *err);
void checkpoint_body_free(void *b);
