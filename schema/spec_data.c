#include "schema/spec_data.h"
#include <stdlib.h>
#include <string.h>
#include "schema/json_read.h"

#define WEIGHT_MAX 1000
#define USES_MAX 1000000
#define SHARDS_MAX 1000000
#define GLOB_MAX 256

static const char *const bad_words[] = {"fail", "skip", NULL};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for a job spec");
}

bool is_data_name(const char *s)
{
    size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "abcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 0 && n <= 128 && !s[n] && !strchr("._-", s[0]) &&
           !strstr(s, "..");
}

/* A pattern that leads out of the root matches nothing; said at once. */
static void read_match(struct json_read *r, const char **ret)
{
    const char *match = json_read_string(r, "match", GLOB_MAX, NULL);
    if (match &&
        (match[0] == '/' || !strncmp(match, "../", 3) || strstr(match, "/../")))
        json_read_fail(r, "match",
                       "match is \"%s\", but stands for paths below the root, "
                       "such as \"2024/*.jsonl.zst\"",
                       match);
    *ret = match;
}

static void read_shards(struct json_read *r, struct data_spec *d, bool root,
                        const char **ret_glob)
{
    const json_t *shards = json_read_get(r, "shards");
    if (json_is_string(shards) && root) {
        json_read_fail(r, "shards",
                       "shards chooses those of a dataset; which files below a "
                       "root are read is said by match");
    } else if (json_is_string(shards)) {
        *ret_glob = json_read_string(r, "shards", GLOB_MAX, NULL);
    } else if (json_is_integer(shards)) {
        d->shards_last = (int)json_read_int(r, "shards", 1, SHARDS_MAX, 0);
    } else if (json_is_object(shards)) {
        struct json_read l;
        json_read_open(&l, shards, "/data/shards", r->err, "last", NULL);
        json_read_need(&l, "last");
        d->shards_last = (int)json_read_int(&l, "last", 1, SHARDS_MAX, 0);
        if (r->r == 0)
            r->r = l.r;
    } else if (shards) {
        json_read_fail(r, "shards",
                       "shards must be a pattern such as \"2024-*\" or "
                       "{\"last\": N}");
    }
}

static int read_group(const json_t *in, size_t i, struct data_group *ret,
                      struct err *err)
{
    struct json_read r;
    char at[JSON_POINTER_MAX];
    json_pointer_index(at, "/data/groups", i);
    if (!json_is_object(in))
        return err_at(err, ERR_INVALID, at,
                      "a group is an object such as {\"match\": \"2024-*\", "
                      "\"weight\": 2}");
    json_read_open(&r, in, at, err, "match", "weight", NULL);
    json_read_need(&r, "match");
    json_read_need(&r, "weight");
    const char *match = json_read_string(&r, "match", GLOB_MAX, "");
    ret->weight = json_read_real(&r, "weight", 0, WEIGHT_MAX, 1);
    if (r.r < 0)
        return r.r;
    ret->match = strdup(match);
    return ret->match ? 0 : no_memory(err);
}

static int read_groups(const json_t *in, struct data_spec *d, struct err *err)
{
    size_t n = json_array_size(in);
    if (n == 0)
        return 0;
    d->groups = calloc(n, sizeof(*d->groups));
    if (!d->groups)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        int r = read_group(json_array_get(in, i), i, &d->groups[i], err);
        if (r < 0)
            return r;
        d->n_groups++;
    }
    return 0;
}

int data_spec_parse(const json_t *in, struct data_spec *d, struct err *err)
{
    struct json_read r;
    json_read_open(&r, in, "/data", err, "dataset", "root", "match", "shards",
                   "groups", "max_uses", "bad_records", "policy_tolerance",
                   NULL);
    const char *root = json_read_string(&r, "root", 128, NULL);
    if (!root)
        json_read_need(&r, "dataset");
    const char *dataset = json_read_string(&r, "dataset", 128, NULL);
    if (r.r == 0 && root && dataset)
        json_read_fail(&r, "root",
                       "data are a dataset's or lie below a root, not both");
    if (r.r == 0 && dataset && !is_data_name(dataset))
        json_read_fail(&r, "dataset", DATA_NAME_RULE);
    const char *match = NULL, *glob = NULL;
    read_match(&r, &match);
    if (r.r == 0 && match && !root)
        json_read_fail(&r, "match",
                       "match chooses files below a root; shards of a dataset "
                       "are chosen by shards");
    read_shards(&r, d, root != NULL, &glob);
    const json_t *groups = json_read_array(&r, "groups", DATA_GROUPS_MAX);
    d->max_uses = json_read_real(&r, "max_uses", 0, USES_MAX, 0);
    d->bad_records = (enum bad_records)json_read_word(&r, "bad_records",
                                                      bad_words, BAD_FAIL);
    d->policy_tolerance = json_read_real(&r, "policy_tolerance", 0, 1, 0.01);
    if (r.r < 0)
        return r.r;
    d->dataset = dataset ? strdup(dataset) : NULL;
    d->root = root ? strdup(root) : NULL;
    d->match = match ? strdup(match) : NULL;
    d->shards_glob = glob ? strdup(glob) : NULL;
    if ((dataset && !d->dataset) || (root && !d->root) ||
        (match && !d->match) || (glob && !d->shards_glob))
        return no_memory(err);
    return read_groups(groups, d, err);
}

void data_spec_release(struct data_spec *d)
{
    free(d->dataset);
    free(d->root);
    free(d->match);
    free(d->shards_glob);
    for (int i = 0; i < d->n_groups; i++)
        free(d->groups[i].match);
    free(d->groups);
    *d = (struct data_spec){0};
}

int data_spec_fits(const struct data_spec *d, const struct training_spec *t,
                   struct err *err)
{
    if (d->n_groups && t->shuffle.mode != SHUFFLE_GLOBAL)
        return err_at(err, ERR_INVALID, "/data/groups",
                      "groups with weights need the shuffle over all records: "
                      "\"shuffle\": {\"mode\": \"global\"} in training");
    return 0;
}

json_t *data_spec_semantics(const struct data_spec *d)
{
    return json_pack("{s:s, s:f}", "bad_records", bad_words[d->bad_records],
                     "policy_tolerance", d->policy_tolerance);
}

/* What a later version brought stands only where it was given: a spec that was
 * stored before reads back as it was. */
json_t *data_spec_json(const struct data_spec *d)
{
    json_t *out = data_spec_semantics(d);
    if (d->dataset)
        json_object_set_new(out, "dataset", json_string(d->dataset));
    if (d->root)
        json_object_set_new(out, "root", json_string(d->root));
    if (d->match)
        json_object_set_new(out, "match", json_string(d->match));
    if (d->shards_glob)
        json_object_set_new(out, "shards", json_string(d->shards_glob));
    if (d->shards_last)
        json_object_set_new(out, "shards",
                            json_pack("{s:i}", "last", d->shards_last));
    if (d->n_groups) {
        json_t *groups = json_array();
        for (int i = 0; i < d->n_groups; i++)
            json_array_append_new(
                groups, json_pack("{s:s, s:f}", "match", d->groups[i].match,
                                  "weight", d->groups[i].weight));
        json_object_set_new(out, "groups", groups);
    }
    if (d->max_uses > 0)
        json_object_set_new(out, "max_uses", json_real(d->max_uses));
    return out;
}
