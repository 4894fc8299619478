/* start.h - where a cycle goes on.
 *
 * At its newest checkpoint that is not set aside; without one at the end of
 * the cycle before (the weights of which it begins with); without that at the
 * very start. Claims begin there, and a lease that ends says so. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/checkpoint.h"
#include "server/cycle.h"
#include "server/store.h"

struct start {
    struct checkpoint from; /* id 0: from the start */
    bool initial;           /* it is the end of the cycle before */
    int64_t step, epoch, records;
};
int start_find(struct store *st, const struct cycle *c, struct start *ret,
               struct err *err);
void start_release(struct start *s);
