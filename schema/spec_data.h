/* spec_data.h - the `data` of a job spec (spec.h), parsed and written. */
#pragma once
#include "schema/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

int data_spec_parse(const json_t *in, struct data_spec *ret, struct err *err);
void data_spec_release(struct data_spec *d);
/* What the job's signature takes of it: how records are read, not which. */
json_t *data_spec_semantics(const struct data_spec *d);
json_t *data_spec_json(const struct data_spec *d);
/* What it asks of the training. ERR_INVALID. */
int data_spec_fits(const struct data_spec *d, const struct training_spec *t,
                   struct err *err);

/* [A-Za-z0-9][A-Za-z0-9._-]{0,127} without "..". */
bool is_data_name(const char *s);
#define DATA_NAME_RULE                                                         \
    "a dataset's name begins with a letter or digit and goes on with "         \
    "letters, digits, '.', '_' and '-'"

#ifdef __cplusplus
}
#endif
