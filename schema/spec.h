/* spec.h - the job spec: what to train, on what, how, and under which runtime
 * policy.
 *
 * A submitted spec is resolved once: every default is filled in, every field
 * checked, unknown ones refused. Training semantics (model, record, data,
 * training) are hashed into the resume signature; the runtime policy may
 * change at any time. Both programs parse the same resolved JSON: integers and
 * reals written as such, null where the device's default holds. A field that
 * is null counts as left out. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "schema/record_desc.h"

#ifdef __cplusplus
extern "C" {
#endif

struct model_spec {
    /* type policy_value_transformer (the default) */
    int d_model; /* default 128 */
    int layers;  /* default 4 */
    int heads;   /* divides d_model; default the most of 4, 2, 1 that does */
    int ff;      /* default 4 d_model */
    int max_length; /* learned positions per tokens field; default 512 */
    double dropout; /* [0, 1); default 0 */
};

enum schedule_type { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE };
enum shuffle_mode { SHUFFLE_NONE, SHUFFLE_BUFFER, SHUFFLE_GLOBAL };
enum bad_records { BAD_FAIL, BAD_SKIP };

struct training_spec {
    int epochs;           /* default 1 */
    int effective_batch;  /* records per optimizer step; default 64 */
    int64_t seed;         /* 0 … 2^53 - 1; default 0 */
    struct {              /* type adamw */
        double lr, weight_decay; /* default 0.001, 0.01 */
        double beta1, beta2, eps; /* default 0.9, 0.999, 1e-8 */
        bool restart; /* cycles "restart": moments and step count begin anew
                       * with each; default "continue" */
    } optimizer;
    struct {
        enum schedule_type type; /* default constant */
        int warmup_steps;        /* default 0 */
        double final_fraction;   /* of lr, where linear and cosine end; 0 */
        int64_t steps;           /* one schedule over so many optimizer steps of
                                  * the job; 0 (null): each cycle has its own */
    } schedule;
    double clip_norm;     /* 0: off; default 1 */
    double *losses;       /* weight per field of the record; 0 for inputs;
                           * targets default to 1 */
    struct {
        enum shuffle_mode mode; /* default buffer */
        int size;               /* default 10000 */
    } shuffle;
    struct {
        double fraction; /* of the records, by their hash, that are held out and
                          * never trained on; 0: none */
        char *dataset;   /* or all of another dataset; NULL: none */
        int64_t records; /* at most so many, the first; default 10000 */
        int64_t every;   /* optimizer steps; 0: at each epoch's end (default).
                          * The last step of a cycle is always one */
    } validation;
};

struct data_group { /* of shards */
    char *match;   /* glob of their names */
    double weight; /* uses of a record per epoch: 0 … 1000 */
};

struct data_spec {
    char *dataset;     /* or NULL: */
    char *root;        /* files below this --data-root */
    char *match;       /* glob of their paths below it; NULL: every .jsonl,
                        * .jsonl.gz and .jsonl.zst */
    char *shards_glob; /* of a dataset; NULL: all */
    int shards_last;   /* the last N by name; 0: all. In JSON {"last": N} */
    struct data_group *groups; /* the first that matches counts, others weigh 1 */
    int n_groups;
    double max_uses; /* at most so many of each record that is new; 0: no limit */
    enum bad_records bad_records;
    double policy_tolerance; /* default 0.01 */
};
#define DATA_GROUPS_MAX 64

enum padding_mode { PADDING_DYNAMIC, PADDING_STABLE, PADDING_LADDER };

/* Sizes that a dimension is padded up to, ascending; n 0: none. */
struct sizes {
    int *v;
    int n;
};
#define SIZES_MAX 64 /* per dimension */

/* How long batches are, per dimension of the record. Nothing is ever cut: what
 * is longer than all that is said here is padded to its own length. */
struct padding {
    enum padding_mode mode; /* default stable where there is a minimum, ladder
                             * where there are sizes or a count, else dynamic */
    int n_dims;
    int *minimum;        /* stable; 0: none */
    struct sizes *sizes; /* ladder */
    int count; /* ladder: at most so many sizes per dimension are yet to be
                * chosen from the data; 0: they are there */
};

enum on_oom { OOM_FAIL, OOM_SPLIT };

struct runtime_policy {
    char device[16];      /* auto, cpu, cuda, mps */
    int micro_batch;      /* default min(16, effective_batch) */
    int threads;          /* 0: the first worker's cores, kept from then on */
    int checkpoint_every; /* micro-batches; default 1000; 0: at the end only */
    int keep;             /* newest checkpoints kept; default 2, at least 2 */
    struct {              /* and the best ones by a metric; count 0: none */
        char series[65];
        int count; /* default 1 */
        bool max;  /* the greatest values; default the least */
    } keep_best;
    int empty_cache_every; /* micro-batches; -1: the device's default */
    struct {              /* 0: off; -1: the device's default */
        double device_memory_mb, rss_mb, seconds;
        int64_t every_micro_batches;
    } restart;
    struct padding padding;
    struct {
        double high_watermark_ratio, low_watermark_ratio; /* -1: unset */
        bool no_limit; /* must be true where the high ratio is 0 */
    } mps;
    enum on_oom on_oom;   /* default fail */
    bool exact_require;
    struct { /* what a worker must have */
        double memory_mb; /* of the device, or where it has none of its own the
                           * host; -1: no matter */
        json_t *labels;   /* object of strings; never NULL once parsed */
    } resources;
};

struct limits {
    int failures, lost, no_progress; /* 3, 20, 10 */
};

struct spec {
    char *name, *kind; /* kind default train, name default the kind */
    int cycles;   /* 0: each started by POST …/cycles; default 1 */
    int priority; /* -100 … 100, default 0 */
    json_t *labels; /* object of strings */
    json_t *after;  /* list: an id, or {"job": id, "when": "ended"} */
    int64_t not_before_ms; /* 0: none */
    struct model_spec model;
    struct record_desc record;
    struct data_spec data;
    struct training_spec training;
    struct runtime_policy runtime;
    struct limits limits;
    json_t *resolved; /* the whole spec with its defaults, canonical */
    char signature[DIGEST_HEX]; /* of the semantics, without a data snapshot */
};

/* Parse and resolve. ERR_INVALID with the pointer of the first bad field. */
int spec_parse(const json_t *in, struct spec *ret, struct err *err);
void spec_release(struct spec *s);

/* The job that an item of `after` names; *ret_ended (may be NULL): any end of it
 * will do, else it must complete. */
int64_t spec_after(const json_t *item, bool *ret_ended);

/* The runtime policy alone, as PATCH carries it: `patch` (RFC 7396) merged
 * over `current`; *ret_json is the new whole policy, checked. Pointers in
 * errors begin with /runtime. ERR_INVALID. */
int runtime_patch(const struct spec *s, const json_t *current,
                  const json_t *patch, json_t **ret_json, struct err *err);
/* Parse a runtime policy, resolved or not, for the spec's record. */
int runtime_parse(const json_t *in, const struct record_desc *record,
                  int effective_batch, struct runtime_policy *ret,
                  struct err *err);
void runtime_release(struct runtime_policy *r);
/* A policy as resolved JSON: -1 is null there. Caller owns it. */
json_t *runtime_json(const struct runtime_policy *r,
                     const struct record_desc *record);

/* Of the padding in a stored policy, take away what a patch of it replaces: the
 * sizes where it brings a count, the count where it brings sizes, both where it
 * brings another mode than ladder. */
void runtime_make_way(json_t *runtime, const json_t *patch);

/* What a batch whose longest record has `longest` entries is padded to. */
int padding_length(const struct padding *p, int dim, int longest);
/* The most that the policy foresees; 0: it foresees nothing. */
int padding_top(const struct padding *p, int dim);
int padding_copy(const struct padding *p, struct padding *ret, struct err *err);
void padding_release(struct padding *p);

/* What the policy must fit besides the record: the model. ERR_INVALID. */
int spec_runtime_fits(const struct spec *s, const struct runtime_policy *p,
                      struct err *err);

/* The pair of MPS watermark ratios as it must be set before the device is
 * used: -1 (unset) becomes the allocator's default, 1.7 and 1.4 (1.0 where
 * memory is not unified), and low must not exceed high unless high is 0 (no
 * limit). ERR_INVALID names what to add or remove; `at` is the pointer of the
 * object both stand in. */
int mps_ratios(double high, double low, bool unified, const char *at,
               double *ret_high, double *ret_low, struct err *err);

/* Signature of a cycle: the job's semantics with the data snapshot's digest. */
void spec_cycle_signature(const struct spec *s, const char *data_digest,
                          char out[DIGEST_HEX]);
/* The first field, as a JSON pointer, in which the training semantics of two
 * resolved specs differ: 1 and *ret filled, or 0. */
int spec_semantics_diff(const json_t *a, const json_t *b, char *ret, size_t cap);

/* Optimizer steps of a cycle: epochs times the batches of one epoch, the last
 * of which may be partial. */
int64_t spec_steps(const struct spec *s, int64_t records);
/* Learning rate of optimizer step `step` (0-based) of `steps`: warm-up to lr
 * over warmup_steps (step 0 trains with lr/warmup), then constant, linear or
 * cosine to final_fraction·lr at the last step (a cycle of one step trains with
 * lr). A pure function of the step. */
double spec_learning_rate(const struct training_spec *t, int64_t step,
                          int64_t steps);
/* That of a cycle's step: where one schedule spans the job's cycles, of its
 * step step_base + step. */
double spec_cycle_rate(const struct training_spec *t, int64_t step_base,
                       int64_t step, int64_t steps);
/* Trainable parameters of the model, computed, not built. */
int64_t spec_parameters(const struct spec *s);

#ifdef __cplusplus
}
#endif
