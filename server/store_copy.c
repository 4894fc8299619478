/* store_copy.c - copies of both files, for a backup (store.h).
 *
 * pawl.db is copied page by page inside one read transaction: claims and saves
 * go on, and what they write meanwhile waits in the WAL, for as long as the disk
 * takes to copy one file. That would be too long for checkpoints.db: its copy is
 * a new file that gets the chunks one by one. */
#include <stdlib.h>
#include <string.h>
#include "server/store_db.h"

#define PAGES 2048 /* copied between two looks at `stop` */

/* Nobody reads it before it is whole, and who reads it then syncs it. */
static int be_quick(struct store *st, struct err *err)
{
    return db_exec(st, "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF", err);
}

static int copy_pages(struct store *from, struct store *to, store_stop_fn *stop,
                      void *arg, struct err *err)
{
    sqlite3_backup *b = sqlite3_backup_init(to->db, "main", from->db, "main");
    if (!b)
        return db_error(to, "copy", err);
    int rc, r = 0;
    while ((rc = sqlite3_backup_step(b, PAGES)) == SQLITE_OK && r == 0)
        if (stop && stop(arg))
            r = err_set(err, ERR_BUSY, "the copy was broken off");
    int done = sqlite3_backup_finish(b);
    if (r < 0)
        return r;
    if (rc != SQLITE_DONE && done != SQLITE_OK)
        return db_error(to, "copy", err);
    return rc == SQLITE_DONE ? 0
                             : err_set(err, ERR_DB, "%s: copy: %s", to->path,
                                       sqlite3_errstr(rc));
}

int store_copy(struct store *from, const char *path, store_stop_fn *stop,
               void *arg, struct store **ret, struct err *err)
{
    struct store *to = NULL;
    int r = db_open_copy(from, path, false, &to, err);
    if (r >= 0)
        r = be_quick(to, err);
    /* the first read fixes the moment, the transaction holds it: without one
     * each commit would begin the copy anew */
    int64_t version;
    if (r >= 0)
        r = db_exec(from, "BEGIN", err);
    if (r >= 0) {
        r = db_int(from, "PRAGMA user_version", &version, err);
        if (r >= 0)
            r = copy_pages(from, to, stop, arg, err);
        sqlite3_exec(from->db, "COMMIT", NULL, NULL, NULL);
    }
    /* the pages say that there is a WAL; a single file is easier to carry */
    if (r >= 0)
        r = db_exec(to, "PRAGMA journal_mode=DELETE; PRAGMA journal_mode=OFF",
                    err);
    if (r < 0) {
        store_close(to);
        return r;
    }
    *ret = to;
    return 0;
}

int store_copy_chunks(struct store *from, const char *path, struct store **ret,
                      struct err *err)
{
    struct store *to = NULL;
    int r = db_open_copy(from, path, true, &to, err);
    if (r >= 0)
        r = be_quick(to, err);
    if (r >= 0)
        r = db_create(to, true, err);
    if (r < 0) {
        store_close(to);
        return r;
    }
    *ret = to;
    return 0;
}
