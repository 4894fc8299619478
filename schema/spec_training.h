/* spec_training.h - the `training` of a job spec (spec.h), parsed and written. */
#pragma once
#include "schema/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

int training_spec_parse(const json_t *in, const struct record_desc *record,
                        struct training_spec *ret, struct err *err);
void training_spec_release(struct training_spec *t);
/* All that may change the result: what the signature takes of it. */
json_t *training_spec_semantics(const struct training_spec *t,
                                const struct record_desc *record);
/* All of it, with its defaults. */
json_t *training_spec_json(const struct training_spec *t,
                           const struct record_desc *record);

#ifdef __cplusplus
}
#endif
