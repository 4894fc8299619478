#include "server/listen.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "schema/cleanup.h"

static int listen_unix(const char *path, int *ret_fd, char *name, size_t cap,
                       struct err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(a.sun_path))
        return err_set(err, ERR_INVALID, "the socket path %s is too long",
                       path);
    strcpy(a.sun_path, path);
    AUTO_FD int fd =
        socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set(err, ERR_IO, "cannot make a socket: %s",
                       strerror(errno));
    /* a socket that nobody answers is left over from a killed server */
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) {
        AUTO_FD int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(probe, (struct sockaddr *)&a, sizeof(a)) < 0 &&
            errno == ECONNREFUSED)
            unlink(path);
    }
    mode_t old = umask(0177);
    int r = bind(fd, (struct sockaddr *)&a, sizeof(a));
    int e = errno;
    umask(old);
    if (r < 0 || listen(fd, 128) < 0)
        return err_set(err, ERR_IO, "cannot listen on unix:%s: %s", path,
                       strerror(r < 0 ? e : errno));
    snprintf(name, cap, "unix:%s", path);
    *ret_fd = fd;
    fd = -1;
    return 0;
}

static int listen_tcp(const struct listen_address *in, int *ret_fd, char *name,
                      size_t cap, struct err *err)
{
    struct sockaddr_in a4 = {.sin_family = AF_INET,
                             .sin_port = htons(in->port)};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6,
                              .sin6_port = htons(in->port)};
    bool six = strchr(in->host, ':');
    inet_pton(six ? AF_INET6 : AF_INET, in->host,
              six ? (void *)&a6.sin6_addr : (void *)&a4.sin_addr);
    struct sockaddr *a = six ? (struct sockaddr *)&a6 : (struct sockaddr *)&a4;
    socklen_t len = six ? sizeof(a6) : sizeof(a4);
    int on = 1;

    AUTO_FD int fd = socket(six ? AF_INET6 : AF_INET,
                            SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set(err, ERR_IO, "cannot make a socket: %s",
                       strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (six)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    if (bind(fd, a, len) < 0 || listen(fd, 511) < 0)
        return err_set(err, ERR_IO, "cannot listen on %s: %s", in->text,
                       strerror(errno));
    if (getsockname(fd, a, &len) < 0)
        return err_set(err, ERR_IO, "cannot name the socket: %s",
                       strerror(errno));
    unsigned port = ntohs(six ? a6.sin6_port : a4.sin_port);
    /* a wildcard is no address to connect to */
    const char *host = in->host;
    if (!strcmp(host, "0.0.0.0"))
        host = "127.0.0.1";
    if (!strcmp(host, "::"))
        host = "::1";
    snprintf(name, cap, six ? "http://[%s]:%u" : "http://%s:%u", host, port);
    *ret_fd = fd;
    fd = -1;
    return 0;
}

int listen_open(const struct listen_address *address, int *ret_fd, char *name,
                size_t cap, struct err *err)
{
    return address->unix_path
               ? listen_unix(address->unix_path, ret_fd, name, cap, err)
               : listen_tcp(address, ret_fd, name, cap, err);
}
