/* option.h - one option of pawld: its name, and what its value means. For
 * options.c, which knows where values come from and which one wins. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "schema/err.h"
#include "server/options.h"

enum option_id {
    OPT_STATE,
    OPT_LISTEN,
    OPT_WORKERS,
    OPT_DATA_ROOT,
    OPT_HOST,
    OPT_SHARE,
    OPT_AGE,
    OPT_LEASE,
    OPT_DRAIN_TIMEOUT,
    OPT_CONFIG,
    OPT_VERSION,
    OPT_HELP,
    OPT_COUNT,
};

/* "data-root" is --data-root, PAWL_DATA_ROOT and "data_root". */
struct option_desc {
    const char *flag;
    bool value, many, config;
};
extern const struct option_desc option_descs[OPT_COUNT];

/* Where a value came from, for the sentence. */
struct option_source {
    char name[80];
    struct err *err;
};

/* A list option's first value of a layer drops those of the layer below:
 * option_clear. ERR_INVALID. */
int option_set(struct options *o, enum option_id id, const char *value,
               const struct option_source *from);
/* As the config file has it. */
int option_set_json(struct options *o, enum option_id id, const json_t *value,
                    const struct option_source *from);
void option_clear(struct options *o, enum option_id id);
