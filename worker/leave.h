/* leave.h - how a lease ends: finished, yielded or failed, with a checkpoint when
 * there are steps that none covers (run.h). */
#pragma once
#include "worker/run.h"

int leave_finished(struct run *r, struct err *err);
int leave_yielded(struct run *r, const char *reason, const char *detail,
                  struct err *err);
/* bad_checkpoint: one that did not verify; 0: none. */
int leave_failed(struct run *r, const struct err *why, int64_t bad_checkpoint,
                 struct err *err);
/* The lease has another owner, or is gone. */
bool leave_is_refusal(int e);
