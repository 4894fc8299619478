#include "server/death.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"

bool death_is_clean(const struct death *d)
{
    return d->kind == DEATH_EXIT && d->code == 0;
}

void death_judge(struct death *d)
{
    switch (d->kind) {
    case DEATH_SIGNAL:
        if (d->oom_confirmed)
            snprintf(d->verdict, sizeof(d->verdict),
                     "was killed for memory (confirmed out-of-memory kill)");
        else if (d->signal == SIGKILL)
            snprintf(d->verdict, sizeof(d->verdict),
                     "was killed by signal 9, cause unknown");
        else
            snprintf(d->verdict, sizeof(d->verdict),
                     "was killed by signal %d (%s)", d->signal,
                     strsignal(d->signal));
        break;
    case DEATH_EXIT:
        snprintf(d->verdict, sizeof(d->verdict), "exited with %d by itself",
                 d->code);
        break;
    case DEATH_UNKNOWN:
        if (d->oom_confirmed)
            snprintf(d->verdict, sizeof(d->verdict),
                     "was killed for memory (confirmed out-of-memory kill)");
        else
            snprintf(d->verdict, sizeof(d->verdict),
                     "is gone, exit status not known (an earlier server had "
                     "started it)");
        break;
    }
}

/* UTF-8 or not: bytes beyond ASCII become '?'. */
void death_read_log(struct death *d, const char *path)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !st.st_size)
        return;
    off_t from = st.st_size - (off_t)sizeof(d->last_lines) + 1;
    ssize_t n = pread(fd, d->last_lines, sizeof(d->last_lines) - 1,
                      from > 0 ? from : 0);
    if (n <= 0)
        return;
    d->last_lines[n] = '\0';
    for (char *s = d->last_lines; *s; s++)
        if ((unsigned char)*s >= 0x80 ||
            ((unsigned char)*s < 0x20 && *s != '\n'))
            *s = '?';
    while (n && d->last_lines[n - 1] == '\n')
        d->last_lines[--n] = '\0';
    char *whole = from > 0 ? strchr(d->last_lines, '\n') : NULL;
    if (whole) /* the first one is cut */
        memmove(d->last_lines, whole + 1, strlen(whole));
}
