/* lane.h - the threads that handlers run on, and their queues.
 *
 * A lane takes tasks in order. WRITE and CHUNK take all that wait at once, run
 * each in its own savepoint inside one BEGIN IMMEDIATE, commit, and only then
 * tell them so: that is the group commit. The log is folded back after that, so
 * that no answer waits for it. CHUNK and BULK run at a lower priority. */
#pragma once
#include <stdint.h>
#include "server/httpd.h"

struct lanes;
struct server;

struct task {
    /* Run with the lane's context. < 0 rolls back this task's savepoint. */
    int (*run)(struct task *t, struct ctx *ctx, struct err *err);
    /* After the commit (or the failure): t->result and t->err are set. Runs on
     * the lane's thread; must not block. */
    void (*done)(struct task *t);
    int result;
    struct err err;
    struct task *next;
};

int lanes_new(const char *dir, struct server *server, int readers,
              struct lanes **ret, struct err *err);
void lanes_put(struct lanes *l, enum lane lane, struct task *t);
/* Run on the lane and wait for the commit; not from a lane's own thread. */
int lanes_call(struct lanes *l, enum lane lane,
               int (*run)(void *arg, struct ctx *ctx, struct err *err),
               void *arg, struct err *err);
/* Called on the WRITE lane's thread after a commit that noted `bits`. */
void lanes_on_notice(struct lanes *l, void (*fn)(void *arg, unsigned bits),
                     void *arg);
void lanes_stop(struct lanes *l); /* finish what is queued, join, close */
