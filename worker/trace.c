#include "worker/trace.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "schema/buf.h"
#include "schema/cleanup.h"

struct trace {
    int fd;
    json_t *records; /* of the step under way */
};

int trace_open(struct trace **ret, struct err *err)
{
    const char *path = getenv("PAWL_TRACE");
    *ret = NULL;
    if (!path || !*path)
        return 0;
    struct trace *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(err, ERR_NOMEM, "no memory for a trace");
    t->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (t->fd < 0) {
        err_set(err, ERR_IO, "PAWL_TRACE: cannot open %s: %s", path,
                strerror(errno));
        free(t);
        return ERR_IO;
    }
    t->records = json_array();
    *ret = t;
    return 0;
}

void trace_micro(struct trace *t, const struct feed *f,
                 const struct feed_batch *b)
{
    for (int i = 0; t && i < b->batch.records; i++)
        json_array_append_new(
            t->records, json_pack("[s, I]", feed_shard(f, b->places[i][0]),
                                  (json_int_t)b->places[i][1]));
}

void trace_step(struct trace *t, int64_t step, int64_t epoch)
{
    if (!t)
        return;
    AUTO_JSON json_t *line =
        json_pack("{s:I, s:I, s:O}", "step", (json_int_t)step, "epoch",
                  (json_int_t)epoch, "records", t->records);
    AUTO_FREE char *text = json_dumps(line, JSON_COMPACT);
    CLEANUP(buf_release) struct buf out = {0};
    /* one write: lines of a killed process are whole or missing */
    if (text && buf_addf(&out, "%s\n", text) == 0 &&
        write(t->fd, out.data, out.len) < 0)
        t->fd = t->fd; /* an aid: a full disk must not stop training */
    json_array_clear(t->records);
}

void trace_close(struct trace *t)
{
    if (!t)
        return;
    close(t->fd);
    json_decref(t->records);
    free(t);
}
