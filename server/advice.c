#include "server/advice.h"
#include <stdbool.h>
#include <string.h>
#include "schema/cleanup.h"

/* Sizes for every dimension. n 0: none, dynamic. */
struct profile {
    int sizes[LADDER_SIZES_MAX];
    int n;
};

static double waste_of(const struct advice_dim *dims,
                       const struct profile *profiles, int n, int micro_batch)
{
    double held = 0, padded = 0;
    for (int i = 0; i < n; i++) {
        const struct lengths *l = dims[i].lengths;
        held += (double)dims[i].fields * (double)l->sum;
        padded +=
            (double)dims[i].fields * (double)l->records *
            ladder_padded(l, micro_batch, profiles[i].sizes, profiles[i].n);
    }
    return padded > held ? 1 - held / padded : 0;
}

/* Sizes, and lengths beyond the last one. */
static double shapes_of(const struct advice_dim *dims,
                        const struct profile *profiles, int n)
{
    double shapes = 1;
    for (int i = 0; i < n; i++) {
        const struct profile *p = &profiles[i];
        const struct lengths *l = dims[i].lengths;
        int top = p->n ? p->sizes[p->n - 1] : 0, last = 0;
        double here = p->n;
        for (int bin = 0; bin < l->n; bin++) {
            int size = lengths_of_bin(l, bin);
            size = size < 1 ? 1 : size;
            if (!l->count[bin] || size <= top || size == last)
                continue;
            here++;
            last = size;
        }
        shapes *= here < 1 ? 1 : here;
    }
    return shapes;
}

static json_t *figures(const struct advice_dim *dims,
                       const struct profile *profiles, int n, int micro_batch)
{
    double shapes = shapes_of(dims, profiles, n);
    json_t *out =
        json_pack("{sf}", "waste", waste_of(dims, profiles, n, micro_batch));
    if (out && shapes < 1e15)
        json_object_set_new(out, "shapes", json_integer((json_int_t)shapes));
    return out;
}

static json_t *stable(const struct advice_dim *dims, struct profile *profiles,
                      int n, int micro_batch, double fraction)
{
    json_t *minimum = json_object();
    for (int i = 0; i < n; i++) {
        int size = lengths_percentile(dims[i].lengths, fraction);
        size = size < 1                   ? 1
               : size > LADDER_LENGTH_MAX ? LADDER_LENGTH_MAX
                                          : size;
        profiles[i].sizes[0] = size;
        profiles[i].n = 1;
        json_object_set_new(minimum, dims[i].name, json_integer(size));
    }
    json_t *out = json_pack("{s{ss so}}", "padding", "mode", "stable",
                            "minimum", minimum);
    AUTO_JSON json_t *more = figures(dims, profiles, n, micro_batch);
    json_object_update(out, more);
    return out;
}

static int ladder(const struct advice_dim *dims, struct profile *profiles,
                  int n, int micro_batch, int k, json_t **ret, struct err *err)
{
    AUTO_JSON json_t *sizes = json_object();
    for (int i = 0; i < n; i++) {
        struct profile *p = &profiles[i];
        p->n = ladder_choose(dims[i].lengths, micro_batch, k, p->sizes, err);
        if (p->n < 0)
            return p->n;
        json_t *list = json_array();
        for (int j = 0; j < p->n; j++)
            json_array_append_new(list, json_integer(p->sizes[j]));
        json_object_set_new(sizes, dims[i].name, list);
    }
    *ret = json_pack("{s{ss sO}}", "padding", "mode", "ladder", "sizes", sizes);
    AUTO_JSON json_t *more = figures(dims, profiles, n, micro_batch);
    json_object_update(*ret, more);
    return 0;
}

int advice_json(const struct advice_dim *dims, int n, int micro_batch,
                json_t **ret, struct err *err)
{
    bool any = false;
    for (int i = 0; i < n; i++)
        any = any || dims[i].lengths->records > 0;
    if (!any) {
        *ret = json_null();
        return 0;
    }
    AUTO_FREE struct profile *profiles = calloc((size_t)n, sizeof(*profiles));
    if (!profiles)
        return err_set(err, ERR_NOMEM, "no memory for advice");
    AUTO_JSON json_t *out =
        json_pack("{si so}", "micro_batch", micro_batch, "dynamic",
                  figures(dims, profiles, n, micro_batch));
    json_object_set_new(out, "stable",
                        json_pack("{so so}", "p99",
                                  stable(dims, profiles, n, micro_batch, 0.99),
                                  "p100",
                                  stable(dims, profiles, n, micro_batch, 1)));
    AUTO_JSON json_t *ladders = json_object();
    static const struct {
        int k;
        const char *word;
    } ks[] = {{4, "4"}, {8, "8"}, {16, "16"}};
    for (int i = 0; i < 3; i++) {
        json_t *one = NULL;
        int r = ladder(dims, profiles, n, micro_batch, ks[i].k, &one, err);
        if (r < 0)
            return r;
        json_object_set_new(ladders, ks[i].word, one);
    }
    json_object_set(out, "ladder", ladders);
    *ret = json_incref(out);
    return 0;
}
