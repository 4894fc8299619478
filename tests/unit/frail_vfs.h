/* frail_vfs.h - a disk that loses power, fills up and fails, under SQLite.
 *
 * A VFS over the default one, registered as the default by the test that
 * includes this. Real files hold what the system would show; beside them, for
 * each file, stands what a power cut would leave: the bytes as of the last
 * sync, and the writes since then. frail_cut() puts that in the files' place:
 *
 *   write ──► real file, and a list of writes not yet synced
 *   sync  ──► the list becomes durable bytes; the first one of a new log or
 *             journal makes the folder's names durable, too
 *   cut   ──► durable bytes, and of the list none, all, or any, some torn
 *
 * Calls that change something are counted, and the n-th is the one at which
 * power goes or an error comes. After a failed sync the writes before it can
 * be read but are never durable, as on Linux. */
#pragma once
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <assert.h>

enum frail_loss { LOSE_ALL, LOSE_NONE, LOSE_SOME, LOSSES };
enum frail_fault {
    FAULT_NONE,
    FAULT_CUT,  /* no more power: all calls fail from here on */
    FAULT_FULL, /* no space: the write that wanted it is cut short */
    FAULT_WRITE,
    FAULT_SYNC,
    FAULT_READ
};

struct frail_write {
    struct frail_write *next;
    int64_t offset; /* of a truncation: the size, and data is NULL */
    size_t len;
    char *data;
};

struct frail_disk { /* a file, as a power cut would leave it */
    struct frail_disk *next;
    char path[512];
    bool named; /* its name is durable */
    bool gone;  /* deleted, but that is not durable yet */
    char *bytes;
    int64_t size, room;
    struct frail_write *writes, **tail;
};

static struct {
    sqlite3_vfs vfs, *real;
    struct frail_disk *disks;
    enum frail_fault fault;
    int64_t at, seen; /* the call to fail, and how many were made */
    bool lasting;     /* all later ones, too, until frail_mend() */
    bool off, hit, paused;
    uint64_t random;
} frail;

struct frail_file {
    sqlite3_file base;
    struct frail_disk *disk; /* NULL: a temporary one */
    bool sync_names;         /* a new log or journal: SQLite syncs the folder */
    sqlite3_file *real;
};

static inline uint32_t frail_random(void)
{
    frail.random = frail.random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(frail.random >> 33);
}

/* Let the n-th call fail that `fault` is about. */
static inline void frail_arm(enum frail_fault fault, int64_t n, bool lasting)
{
    frail.fault = fault;
    frail.at = n;
    frail.seen = 0;
    frail.lasting = lasting;
    frail.hit = frail.off = false;
}

static inline void frail_mend(void)
{
    frail.fault = FAULT_NONE;
}

static inline bool frail_fails(enum frail_fault kind)
{
    if (frail.paused || frail.fault == FAULT_NONE)
        return false;
    if (frail.off)
        return true;
    bool counts = frail.fault == FAULT_CUT    ? kind != FAULT_READ
                  : frail.fault == FAULT_FULL ? kind == FAULT_WRITE
                                              : kind == frail.fault;
    if (!counts)
        return false;
    frail.seen++;
    if (frail.seen != frail.at && !(frail.lasting && frail.seen > frail.at))
        return false;
    frail.hit = true;
    frail.off = frail.fault == FAULT_CUT;
    return true;
}

/* ---- what is durable ---- */

static inline void *frail_alloc(void *old, size_t len)
{
    void *p = realloc(old, len + 1);
    if (!p)
        abort();
    return p;
}

static inline void disk_resize(struct frail_disk *d, int64_t size)
{
    if (size > d->size) {
        if (size > d->room) { /* by halves: a file grows page by page */
            d->room = size + size / 2;
            d->bytes = frail_alloc(d->bytes, (size_t)d->room);
        }
        memset(d->bytes + d->size, 0, (size_t)(size - d->size));
    }
    d->size = size;
}

static inline void disk_put(struct frail_disk *d, int64_t offset,
                            const char *data, size_t len)
{
    if (d->size < offset + (int64_t)len)
        disk_resize(d, offset + (int64_t)len);
    memcpy(d->bytes + offset, data, len);
}

static inline void disk_note(struct frail_disk *d, int64_t offset,
                             const void *data, size_t len)
{
    if (!d)
        return;
    struct frail_write *w = frail_alloc(NULL, sizeof(*w));
    *w = (struct frail_write){.offset = offset, .len = len};
    if (data)
        w->data = memcpy(frail_alloc(NULL, len), data, len);
    *d->tail = w;
    d->tail = &w->next;
}

/* Each write of the list, kept as `loss` says. */
static inline void disk_settle(struct frail_disk *d, enum frail_loss loss)
{
    for (struct frail_write *w = d->writes, *next; w; w = next) {
        next = w->next;
        uint32_t dice = loss == LOSE_SOME ? frail_random() % 4 : 0;
        if (loss == LOSE_ALL || dice == 1 || dice == 2) {
            /* lost */
        } else if (!w->data) {
            disk_resize(d, w->offset);
        } else if (dice == 3) { /* torn: any of its sectors */
            for (size_t i = 0; i < w->len; i += 512) {
                size_t n = w->len - i < 512 ? w->len - i : 512;
                if (frail_random() & 1)
                    disk_put(d, w->offset + (int64_t)i, w->data + i, n);
            }
        } else {
            disk_put(d, w->offset, w->data, w->len);
        }
        free(w->data);
        free(w);
    }
    d->writes = NULL;
    d->tail = &d->writes;
}

static inline struct frail_disk *disk_of(const char *path)
{
    for (struct frail_disk *d = frail.disks; d; d = d->next)
        if (!strcmp(d->path, path))
            return d;
    struct frail_disk *d = frail_alloc(NULL, sizeof(*d));
    memset(d, 0, sizeof(*d));
    assert(strlen(path) < sizeof(d->path));
    strcpy(d->path, path);
    d->tail = &d->writes;
    /* what was there before this VFS looked is taken to be durable */
    int fd = open(path, O_RDONLY);
    char part[65536];
    ssize_t n;
    d->named = fd >= 0;
    while (fd >= 0 && (n = read(fd, part, sizeof(part))) > 0)
        disk_put(d, d->size, part, (size_t)n);
    if (fd >= 0)
        close(fd);
    d->next = frail.disks;
    frail.disks = d;
    return d;
}

static inline void frail_forget(void)
{
    for (struct frail_disk *d = frail.disks, *next; d; d = next) {
        next = d->next;
        disk_settle(d, LOSE_ALL);
        free(d->bytes);
        free(d);
    }
    frail.disks = NULL;
}

/* Power goes, and comes back. All connections are closed by now. */
static inline void frail_cut(enum frail_loss loss)
{
    for (struct frail_disk *d = frail.disks; d; d = d->next) {
        char shm[600];
        snprintf(shm, sizeof(shm), "%s-shm", d->path);
        unlink(shm);
        bool exists = access(d->path, F_OK) == 0;
        /* without a sync of the folder it may be as it was, or as it is */
        bool old =
            loss == LOSE_ALL || (loss == LOSE_SOME && frail_random() & 1);
        bool named = old ? d->named : exists;
        disk_settle(d, loss);
        unlink(d->path);
        if (!named)
            continue;
        int fd = open(d->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        ssize_t n = write(fd, d->bytes ? d->bytes : "", (size_t)d->size);
        if (fd < 0 || n != d->size)
            abort();
        close(fd);
    }
    frail_forget();
    frail_mend();
    frail.off = false;
}

/* ---- the methods ---- */

#define REAL(f) (((struct frail_file *)(f))->real)
#define DISK(f) (((struct frail_file *)(f))->disk)

static int frail_close(sqlite3_file *f)
{
    return REAL(f)->pMethods ? REAL(f)->pMethods->xClose(REAL(f)) : SQLITE_OK;
}

static int frail_read(sqlite3_file *f, void *to, int n, sqlite3_int64 at)
{
    if (frail_fails(FAULT_READ))
        return SQLITE_IOERR_READ;
    return REAL(f)->pMethods->xRead(REAL(f), to, n, at);
}

static int write_through(sqlite3_file *f, const void *from, int n,
                         sqlite3_int64 at)
{
    int rc = REAL(f)->pMethods->xWrite(REAL(f), from, n, at);
    if (rc == SQLITE_OK)
        disk_note(DISK(f), at, from, (size_t)n);
    return rc;
}

static int frail_write(sqlite3_file *f, const void *from, int n,
                       sqlite3_int64 at)
{
    bool was_off = frail.off;
    if (!frail_fails(FAULT_WRITE))
        return write_through(f, from, n, at);
    if (was_off)
        return SQLITE_IOERR_WRITE;
    if (frail.fault == FAULT_CUT) /* under way when power went */
        disk_note(DISK(f), at, from, (size_t)n);
    else if (n > 1)
        write_through(f, from, n / 2, at);
    return frail.fault == FAULT_FULL ? SQLITE_FULL : SQLITE_IOERR_WRITE;
}

static int frail_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    if (frail_fails(FAULT_WRITE))
        return SQLITE_IOERR_TRUNCATE;
    int rc = REAL(f)->pMethods->xTruncate(REAL(f), size);
    if (rc == SQLITE_OK)
        disk_note(DISK(f), size, NULL, 0);
    return rc;
}

static void names_settle(void)
{
    for (struct frail_disk *d = frail.disks; d; d = d->next) {
        d->named = access(d->path, F_OK) == 0;
        if (!d->named) {
            disk_settle(d, LOSE_ALL);
            d->size = 0;
        }
        d->gone = false;
    }
}

static int frail_sync(sqlite3_file *f, int flags)
{
    bool was_off = frail.off;
    if (frail_fails(FAULT_SYNC)) {
        if (!was_off && frail.fault == FAULT_SYNC && DISK(f))
            disk_settle(DISK(f), LOSE_ALL);
        return SQLITE_IOERR_FSYNC;
    }
    if (!DISK(f))
        return SQLITE_OK;
    disk_settle(DISK(f), LOSE_NONE);
    if (((struct frail_file *)f)->sync_names)
        names_settle();
    ((struct frail_file *)f)->sync_names = false;
    return SQLITE_OK;
}

static int frail_size(sqlite3_file *f, sqlite3_int64 *ret)
{
    return REAL(f)->pMethods->xFileSize(REAL(f), ret);
}

static int frail_lock(sqlite3_file *f, int how)
{
    return REAL(f)->pMethods->xLock(REAL(f), how);
}

static int frail_unlock(sqlite3_file *f, int how)
{
    return REAL(f)->pMethods->xUnlock(REAL(f), how);
}

static int frail_reserved(sqlite3_file *f, int *ret)
{
    return REAL(f)->pMethods->xCheckReservedLock(REAL(f), ret);
}

static int frail_control(sqlite3_file *f, int op, void *arg)
{
    return REAL(f)->pMethods->xFileControl(REAL(f), op, arg);
}

static int frail_sector(sqlite3_file *f)
{
    return REAL(f)->pMethods->xSectorSize(REAL(f));
}

static int frail_traits(sqlite3_file *f)
{
    return REAL(f)->pMethods->xDeviceCharacteristics(REAL(f));
}

static int frail_shm_map(sqlite3_file *f, int region, int size, int extend,
                         void volatile **ret)
{
    return REAL(f)->pMethods->xShmMap(REAL(f), region, size, extend, ret);
}

static int frail_shm_lock(sqlite3_file *f, int offset, int n, int flags)
{
    return REAL(f)->pMethods->xShmLock(REAL(f), offset, n, flags);
}

static void frail_shm_barrier(sqlite3_file *f)
{
    REAL(f)->pMethods->xShmBarrier(REAL(f));
}

static int frail_shm_unmap(sqlite3_file *f, int remove)
{
    return REAL(f)->pMethods->xShmUnmap(REAL(f), remove);
}

static const sqlite3_io_methods frail_methods = {
    .iVersion = 2, /* no xFetch: nothing is read past frail_read() */
    .xClose = frail_close,
    .xRead = frail_read,
    .xWrite = frail_write,
    .xTruncate = frail_truncate,
    .xSync = frail_sync,
    .xFileSize = frail_size,
    .xLock = frail_lock,
    .xUnlock = frail_unlock,
    .xCheckReservedLock = frail_reserved,
    .xFileControl = frail_control,
    .xSectorSize = frail_sector,
    .xDeviceCharacteristics = frail_traits,
    .xShmMap = frail_shm_map,
    .xShmLock = frail_shm_lock,
    .xShmBarrier = frail_shm_barrier,
    .xShmUnmap = frail_shm_unmap,
};

static int frail_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *f,
                      int flags, int *ret_flags)
{
    struct frail_file *own = (struct frail_file *)f;
    bool kept = path && flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL |
                                 SQLITE_OPEN_MAIN_JOURNAL);
    memset(own, 0, sizeof(*own));
    if (frail.off && !frail.paused)
        return SQLITE_CANTOPEN;
    own->disk = kept ? disk_of(path) : NULL; /* before it is made */
    own->real = (sqlite3_file *)(own + 1);
    own->real->pMethods = NULL;
    bool anew = kept && access(path, F_OK) < 0;
    int rc = frail.real->xOpen(frail.real, path, own->real, flags, ret_flags);
    if (anew && own->disk->gone) /* another file of that name */
        disk_note(own->disk, 0, NULL, 0);
    if (anew)
        own->sync_names = flags & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL);
    if (own->real->pMethods)
        own->base.pMethods = &frail_methods;
    return rc;
}

static int frail_delete(sqlite3_vfs *vfs, const char *path, int sync_dir)
{
    if (frail_fails(FAULT_WRITE))
        return SQLITE_IOERR_DELETE;
    int rc = frail.real->xDelete(frail.real, path, 0);
    disk_of(path)->gone = true;
    if (rc == SQLITE_OK && sync_dir)
        names_settle();
    return rc;
}

static int frail_access(sqlite3_vfs *vfs, const char *path, int flags, int *ret)
{
    return frail.real->xAccess(frail.real, path, flags, ret);
}

static int frail_full_path(sqlite3_vfs *vfs, const char *path, int n, char *ret)
{
    return frail.real->xFullPathname(frail.real, path, n, ret);
}

static inline void frail_register(void)
{
    sqlite3_initialize();
    frail.real = sqlite3_vfs_find(NULL);
    frail.vfs = *frail.real;
    frail.vfs.zName = "frail";
    frail.vfs.szOsFile = (int)sizeof(struct frail_file) + frail.real->szOsFile;
    frail.vfs.xOpen = frail_open;
    frail.vfs.xDelete = frail_delete;
    frail.vfs.xAccess = frail_access;
    frail.vfs.xFullPathname = frail_full_path;
    frail.random = 1;
    if (sqlite3_vfs_register(&frail.vfs, 1) != SQLITE_OK)
        abort();
}
