#include "server/options.h"
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/wire.h"

#define CONFIG_MAX (1024 * 1024)
#define WORKERS_MAX 256
#define SHARE_MIN 0.001
#define SHARE_MAX 1000000.0
#define SECONDS_MAX (7 * 24 * 3600)

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
static const struct option_desc {
    const char *flag;
    bool value, many, config;
} descs[OPT_COUNT] = {
    [OPT_STATE] = {"state", true, false, true},
    [OPT_LISTEN] = {"listen", true, true, true},
    [OPT_WORKERS] = {"workers", true, false, true},
    [OPT_DATA_ROOT] = {"data-root", true, true, true},
    [OPT_HOST] = {"host", true, true, true},
    [OPT_SHARE] = {"share", true, true, true},
    [OPT_AGE] = {"age", true, false, true},
    [OPT_LEASE] = {"lease", true, false, true},
    [OPT_DRAIN_TIMEOUT] = {"drain-timeout", true, false, true},
    [OPT_CONFIG] = {"config", true, false, false},
    [OPT_VERSION] = {"version", false, false, false},
    [OPT_HELP] = {"help", false, false, false},
};

/* Variables that others read: the worker, scripts, tests. */
static const char *const foreign[] = {
    "PAWL_MEMORY_PROBE", "PAWL_TOKEN",  "PAWL_TOKEN_FILE",    "PAWL_SERVER",
    "PAWL_TRACE",        "PAWL_REEXEC", "PAWL_WORKER_LABELS",
};

static const char help[] =
    "pawld: hands training cycles to pawl-worker processes and keeps their "
    "states\n"
    "\n"
    "  pawld --state DIR [--listen ADDR:PORT | --listen unix:PATH]…\n"
    "        [--workers N] [--data-root NAME=DIR]…\n"
    "\n"
    "  --state DIR           where everything lies; made if need be "
    "(required)\n"
    "  --listen ADDR:PORT    where to listen, may be repeated; port 0 picks "
    "one\n"
    "           unix:PATH    (default " OPTIONS_LISTEN ")\n"
    "  --workers N           local workers to keep alive (default 1)\n"
    "  --data-root NAME=DIR  a folder that jobs may read, may be repeated\n"
    "  --host NAME           one more name that this server is called by, may "
    "be\n"
    "                        repeated\n"
    "  --share OWNER=WEIGHT  part of the workers' time that jobs with "
    "labels.owner\n"
    "                        OWNER get beside others (1 unless given), may be\n"
    "                        repeated\n"
    "  --age SECONDS         a job that has waited for so long goes before "
    "one of\n"
    "                        the next priority, and so on (default 600)\n"
    "  --lease SECONDS       silence after which a worker's lease is lost "
    "(default 30)\n"
    "  --drain-timeout SECONDS\n"
    "                        how long workers may take to save when the "
    "server\n"
    "                        stops, before they are killed (default 300)\n"
    "  --config FILE         a JSON object with the same names: {\"state\": "
    "\"DIR\",\n"
    "                        \"listen\": [\"…\"], \"workers\": N, "
    "\"data_root\": {NAME: DIR},\n"
    "                        \"host\": [\"…\"], \"share\": {OWNER: "
    "WEIGHT},\n"
    "                        \"age\": N, \"lease\": N, \"drain_timeout\": N}\n"
    "  --version, --help\n"
    "\n"
    "Each can be a variable as well (PAWL_STATE, PAWL_LISTEN, …; several "
    "values "
    "with\n"
    "commas between them). Flags win over variables, variables over the file.\n"
    "\n"
    "The token lies in DIR/token, the URL in DIR/url once the server is "
    "ready:\n"
    "\n"
    "  curl -H \"Authorization: Bearer $(cat DIR/token)\" \"$(cat "
    "DIR/url)/v1/jobs\"\n";

const char *options_help(void)
{
    return help;
}

/* Where a value came from, for the sentence. */
struct source {
    char name[80];
    struct err *err;
};

static int bad(const struct source *from, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static int bad(const struct source *from, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(from->err, ERR_INVALID, "%s: %s", from->name, text);
}

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for the options");
}

int listen_parse(const char *text, struct listen_address *ret, struct err *err)
{
    struct listen_address a = {0};
    unsigned char bytes[16];
    if (!strncmp(text, "unix:", 5)) {
        if (!text[5])
            return err_set(err, ERR_INVALID,
                           "'%s' names no socket: write unix:PATH", text);
        a.unix_path = strdup(text + 5);
    } else {
        const char *colon = strrchr(text, ':');
        size_t len = colon ? (size_t)(colon - text) : 0;
        const char *host = text;
        if (len > 2 && *text == '[' && text[len - 1] == ']') {
            host++;
            len -= 2;
        }
        if (!colon || !len || len >= sizeof(a.host))
            return err_set(err, ERR_INVALID,
                           "'%s' is not ADDR:PORT or unix:PATH", text);
        memcpy(a.host, host, len);
        if (!strcmp(a.host, "localhost"))
            strcpy(a.host, "127.0.0.1");
        bool six = strchr(a.host, ':');
        if (inet_pton(six ? AF_INET6 : AF_INET, a.host, bytes) != 1 ||
            (six && *text != '['))
            return err_set(err, ERR_INVALID,
                           "'%s' has no address in front of the port: write "
                           "127.0.0.1:7295 or [::1]:7295",
                           text);
        char *end;
        long port = strtol(colon + 1, &end, 10);
        if (colon[1] < '0' || colon[1] > '9' || *end || port < 0 ||
            port > 65535)
            return err_set(err, ERR_INVALID, "'%s' has no port from 0 to 65535",
                           text);
        a.port = (uint16_t)port;
    }
    a.text = strdup(text);
    if (!a.text || (!strncmp(text, "unix:", 5) && !a.unix_path)) {
        free(a.text);
        free(a.unix_path);
        return no_memory(err);
    }
    *ret = a;
    return 0;
}

static void clear_many(struct options *o, enum option_id id)
{
    switch (id) {
    case OPT_LISTEN:
        for (size_t i = 0; i < o->n_listen; i++) {
            free(o->listen[i].text);
            free(o->listen[i].unix_path);
        }
        free(o->listen);
        o->listen = NULL;
        o->n_listen = 0;
        break;
    case OPT_DATA_ROOT:
        for (size_t i = 0; i < o->n_data_roots; i++) {
            free(o->data_roots[i].name);
            free(o->data_roots[i].path);
        }
        free(o->data_roots);
        o->data_roots = NULL;
        o->n_data_roots = 0;
        break;
    case OPT_HOST:
        for (size_t i = 0; i < o->n_hosts; i++)
            free(o->hosts[i]);
        free(o->hosts);
        o->hosts = NULL;
        o->n_hosts = 0;
        break;
    case OPT_SHARE:
        for (size_t i = 0; i < o->n_shares; i++)
            free(o->shares[i].owner);
        free(o->shares);
        o->shares = NULL;
        o->n_shares = 0;
        break;
    default:
        break;
    }
}

static int add_listen(struct options *o, const char *value,
                      const struct source *from)
{
    struct err why;
    void *more = realloc(o->listen, (o->n_listen + 1) * sizeof(*o->listen));
    if (!more)
        return no_memory(from->err);
    o->listen = more;
    int r = listen_parse(value, &o->listen[o->n_listen], &why);
    if (r < 0)
        return bad(from, "%s", why.text);
    o->n_listen++;
    return 0;
}

static bool is_name(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                    "0123456789._-",
                    s[i]) ||
            (!i && strchr("._-", s[i])))
            return false;
    return len && len <= 128;
}

static int add_root(struct options *o, const char *value,
                    const struct source *from)
{
    const char *eq = strchr(value, '=');
    if (!eq || !eq[1])
        return bad(from, "'%s' is not NAME=DIR", value);
    if (!is_name(value, (size_t)(eq - value)))
        return bad(from,
                   "'%.*s' is no name for a data root: letters, digits and "
                   "._- only",
                   (int)(eq - value), value);
    for (size_t i = 0; i < o->n_data_roots; i++)
        if (strlen(o->data_roots[i].name) == (size_t)(eq - value) &&
            !strncmp(o->data_roots[i].name, value, (size_t)(eq - value)))
            return bad(from, "there are two data roots '%s'",
                       o->data_roots[i].name);
    void *more =
        realloc(o->data_roots, (o->n_data_roots + 1) * sizeof(*o->data_roots));
    if (!more)
        return no_memory(from->err);
    o->data_roots = more;
    struct data_root *root = &o->data_roots[o->n_data_roots];
    root->name = strndup(value, (size_t)(eq - value));
    root->path = realpath(eq + 1, NULL);
    if (!root->path) {
        int e = errno;
        free(root->name);
        return bad(from, "cannot use the folder %s: %s", eq + 1, strerror(e));
    }
    o->n_data_roots++;
    return root->name ? 0 : no_memory(from->err);
}

static int add_host(struct options *o, const char *value,
                    const struct source *from)
{
    if (!*value || strpbrk(value, "/ \t@[]"))
        return bad(from, "'%s' is no host name", value);
    void *more = realloc(o->hosts, (o->n_hosts + 1) * sizeof(*o->hosts));
    if (!more)
        return no_memory(from->err);
    o->hosts = more;
    o->hosts[o->n_hosts] = strdup(value);
    return o->hosts[o->n_hosts++] ? 0 : no_memory(from->err);
}

static int add_share(struct options *o, const char *value,
                     const struct source *from)
{
    const char *eq = strrchr(value, '='); /* an owner may have one in it */
    char *end;
    double weight = eq ? strtod(eq + 1, &end) : 0;
    if (!eq || eq == value || !eq[1] || *end)
        return bad(from, "'%s' is not OWNER=WEIGHT", value);
    if (!(weight >= SHARE_MIN && weight <= SHARE_MAX))
        return bad(from, "the weight of '%.*s' must be from %g to %g",
                   (int)(eq - value), value, SHARE_MIN, SHARE_MAX);
    for (size_t i = 0; i < o->n_shares; i++)
        if (strlen(o->shares[i].owner) == (size_t)(eq - value) &&
            !strncmp(o->shares[i].owner, value, (size_t)(eq - value)))
            return bad(from, "there are two shares of '%s'",
                       o->shares[i].owner);
    void *more = realloc(o->shares, (o->n_shares + 1) * sizeof(*o->shares));
    if (!more)
        return no_memory(from->err);
    o->shares = more;
    char *owner = strndup(value, (size_t)(eq - value));
    if (!owner)
        return no_memory(from->err);
    o->shares[o->n_shares++] = (struct share){owner, weight};
    return 0;
}

static int set_seconds(int *ret, const char *value, int min,
                       const struct source *from)
{
    char *end;
    long n = strtol(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || n < min || n > SECONDS_MAX)
        return bad(from, "'%s' is not a number of seconds from %d to %d", value,
                   min, SECONDS_MAX);
    *ret = (int)n;
    return 0;
}

static int set_workers(struct options *o, const char *value,
                       const struct source *from)
{
    char *end;
    long n = strtol(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || n < 0 || n > WORKERS_MAX)
        return bad(from, "'%s' is not a number of workers from 0 to %d", value,
                   WORKERS_MAX);
    o->workers = (int)n;
    return 0;
}

/* A list option's first value of a layer drops those of the layer below. */
static int set_option(struct options *o, enum option_id id, const char *value,
                      const struct source *from)
{
    switch (id) {
    case OPT_STATE:
        if (!*value)
            return bad(from, "names no folder");
        free(o->state);
        o->state = strdup(value);
        return o->state ? 0 : no_memory(from->err);
    case OPT_LISTEN:
        return add_listen(o, value, from);
    case OPT_WORKERS:
        return set_workers(o, value, from);
    case OPT_DATA_ROOT:
        return add_root(o, value, from);
    case OPT_HOST:
        return add_host(o, value, from);
    case OPT_SHARE:
        return add_share(o, value, from);
    case OPT_AGE:
        return set_seconds(&o->age_s, value, 1, from);
    case OPT_LEASE:
        return set_seconds(&o->lease_s, value, 2, from);
    case OPT_DRAIN_TIMEOUT:
        return set_seconds(&o->drain_timeout_s, value, 0, from);
    default:
        return 0;
    }
}

static void config_key(enum option_id id, char out[32])
{
    snprintf(out, 32, "%s", descs[id].flag);
    for (char *s = out; *s; s++)
        if (*s == '-')
            *s = '_';
}

static void variable_name(enum option_id id, char out[48])
{
    snprintf(out, 48, "PAWL_%s", descs[id].flag);
    for (char *s = out; *s; s++) {
        if (*s == '-')
            *s = '_';
        else if (*s >= 'a' && *s <= 'z')
            *s = (char)(*s - 'a' + 'A');
    }
}

static size_t distance(const char *a, const char *b)
{
    size_t row[64], n = strlen(b);
    if (n >= 63 || strlen(a) >= 63)
        return 99;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

/* The option that was probably meant, or OPT_COUNT. */
static enum option_id nearest(const char *name, bool config)
{
    enum option_id best = OPT_COUNT;
    size_t best_distance = 4;
    for (int i = 0; i < OPT_COUNT; i++) {
        char key[32];
        if (config && !descs[i].config)
            continue;
        if (config)
            config_key((enum option_id)i, key);
        size_t d = distance(name, config ? key : descs[i].flag);
        if (d < best_distance && d < strlen(descs[i].flag)) {
            best_distance = d;
            best = (enum option_id)i;
        }
    }
    return best;
}

static char *read_file(const char *path, size_t *ret_len, struct err *err)
{
    FILE *f = fopen(path, "re");
    char *text = f ? malloc(CONFIG_MAX + 1) : NULL;
    if (!text) {
        err_set(err, ERR_INVALID, "cannot read the config file %s: %s", path,
                strerror(errno));
        if (f)
            fclose(f);
        return NULL;
    }
    size_t len = fread(text, 1, CONFIG_MAX + 1, f);
    bool broken = ferror(f);
    fclose(f);
    if (broken || len > CONFIG_MAX) {
        err_set(err, ERR_INVALID, "cannot read the config file %s: %s", path,
                broken ? "an I/O error" : "it is too large");
        free(text);
        return NULL;
    }
    *ret_len = len;
    return text;
}

static int config_value(struct options *o, enum option_id id,
                        const json_t *value, const struct source *from)
{
    char number[32];
    if (id == OPT_WORKERS || id == OPT_AGE || id == OPT_LEASE ||
        id == OPT_DRAIN_TIMEOUT) {
        if (!json_is_integer(value))
            return bad(from, "must be a whole number");
        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT,
                 json_integer_value(value));
        return set_option(o, id, number, from);
    }
    if (id == OPT_SHARE) {
        const char *owner;
        json_t *weight;
        if (!json_is_object(value))
            return bad(from, "must be an object of owners and weights");
        json_object_foreach((json_t *)value, owner, weight)
        {
            AUTO_FREE char *pair = NULL;
            if (!json_is_number(weight))
                return bad(from, "the weight of '%s' must be a number", owner);
            if (asprintf(&pair, "%s=%.17g", owner, json_number_value(weight)) <
                0) {
                pair = NULL;
                return no_memory(from->err);
            }
            int r = set_option(o, id, pair, from);
            if (r < 0)
                return r;
        }
        return 0;
    }
    if (id == OPT_DATA_ROOT) {
        const char *name;
        json_t *path;
        if (!json_is_object(value))
            return bad(from, "must be an object of names and folders");
        json_object_foreach((json_t *)value, name, path)
        {
            AUTO_FREE char *pair = NULL;
            if (!json_is_string(path))
                return bad(from, "the folder of '%s' must be a string", name);
            if (asprintf(&pair, "%s=%s", name, json_string_value(path)) < 0) {
                pair = NULL;
                return no_memory(from->err);
            }
            int r = set_option(o, id, pair, from);
            if (r < 0)
                return r;
        }
        return 0;
    }
    if (json_is_string(value))
        return set_option(o, id, json_string_value(value), from);
    if (!descs[id].many || !json_is_array(value))
        return bad(from, descs[id].many ? "must be a string or a list of them"
                                        : "must be a string");
    size_t i;
    json_t *one;
    json_array_foreach(value, i, one)
    {
        if (!json_is_string(one))
            return bad(from, "must be a list of strings");
        int r = set_option(o, id, json_string_value(one), from);
        if (r < 0)
            return r;
    }
    return 0;
}

static int parse_config(struct options *o, const char *path, struct err *err)
{
    size_t len = 0;
    AUTO_JSON json_t *config = NULL;
    AUTO_FREE char *text = read_file(path, &len, err);
    struct err why;
    const char *key;
    json_t *value;

    if (!text)
        return err->code;
    if (json_parse_strict(text, len, &config, &why) < 0)
        return err_set(err, ERR_INVALID, "config file %s: %s", path, why.text);
    if (!json_is_object(config))
        return err_set(err, ERR_INVALID,
                       "config file %s: must be a JSON object", path);
    json_object_foreach(config, key, value)
    {
        struct source from = {.err = err};
        int id = 0;
        for (; id < OPT_COUNT; id++) {
            char name[32];
            config_key((enum option_id)id, name);
            if (descs[id].config && !strcmp(name, key))
                break;
        }
        if (id == OPT_COUNT) {
            enum option_id like = nearest(key, true);
            char name[32] = "";
            if (like != OPT_COUNT)
                config_key(like, name);
            return err_set(err, ERR_INVALID,
                           "config file %s: unknown key \"%.60s\"%s%s%s", path,
                           key, *name ? "; did you mean \"" : "", name,
                           *name ? "\"?" : "");
        }
        snprintf(from.name, sizeof(from.name), "config key \"%s\"", key);
        clear_many(o, (enum option_id)id);
        int r = config_value(o, (enum option_id)id, value, &from);
        if (r < 0)
            return r;
    }
    return 0;
}

static int parse_variable(struct options *o, enum option_id id,
                          const char *value, struct err *err)
{
    struct source from = {.err = err};
    variable_name(id, from.name);
    if (!descs[id].many)
        return set_option(o, id, value, &from);
    clear_many(o, id);
    AUTO_FREE char *copy = strdup(value);
    if (!copy)
        return no_memory(err);
    char *rest = NULL;
    for (char *one = strtok_r(copy, ",", &rest); one;
         one = strtok_r(NULL, ",", &rest)) {
        int r = set_option(o, id, one, &from);
        if (r < 0)
            return r;
    }
    return 0;
}

static const char *variable_of(char **envp, enum option_id id)
{
    char name[48];
    variable_name(id, name);
    size_t len = strlen(name);
    for (char **e = envp; *e; e++)
        if (!strncmp(*e, name, len) && (*e)[len] == '=')
            return *e + len + 1;
    return NULL;
}

static void warn_of_unknown(char **envp, struct buf *warnings)
{
    for (char **e = envp; *e; e++) {
        char name[48];
        size_t len = strcspn(*e, "=");
        bool known = strncmp(*e, "PAWL_", 5) != 0;
        for (int id = 0; id < OPT_COUNT && !known; id++) {
            variable_name((enum option_id)id, name);
            known = descs[id].value && strlen(name) == len &&
                    !strncmp(*e, name, len);
        }
        for (size_t i = 0; i < sizeof(foreign) / sizeof(*foreign); i++)
            known |= strlen(foreign[i]) == len && !strncmp(*e, foreign[i], len);
        if (!known)
            buf_addf(warnings, "the variable %.*s is not known\n", (int)len,
                     *e);
    }
}

/* The flag at argv[*i], or OPT_COUNT. Its value is behind '=' or the next
 * word. */
static int flag_at(int argc, char **argv, int *i, enum option_id *ret_id,
                   const char **ret_value, struct err *err)
{
    const char *arg = argv[*i];
    if (strncmp(arg, "--", 2) || !arg[2]) {
        if (!strcmp(arg, "-h")) {
            *ret_id = OPT_HELP;
            return 0;
        }
        return err_set(err, ERR_INVALID,
                       "'%s' is not expected here: see pawld --help", arg);
    }
    size_t len = strcspn(arg + 2, "=");
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)(len < 60 ? len : 60), arg + 2);
    int id = 0;
    while (id < OPT_COUNT && strcmp(descs[id].flag, name))
        id++;
    if (id == OPT_COUNT) {
        enum option_id like = nearest(name, false);
        return err_set(err, ERR_INVALID, "unknown flag --%s%s%s%s", name,
                       like == OPT_COUNT ? "" : "; did you mean --",
                       like == OPT_COUNT ? "" : descs[like].flag,
                       like == OPT_COUNT ? ": see pawld --help" : "?");
    }
    *ret_id = (enum option_id)id;
    *ret_value = arg[2 + len] ? arg + 2 + len + 1 : NULL;
    if (!descs[id].value)
        return *ret_value ? err_set(err, ERR_INVALID, "--%s takes no value",
                                    descs[id].flag)
                          : 0;
    if (!*ret_value) {
        if (*i + 1 >= argc)
            return err_set(err, ERR_INVALID, "--%s needs a value",
                           descs[id].flag);
        *ret_value = argv[++*i];
    }
    return 0;
}

int options_parse(int argc, char **argv, char **envp, struct options *ret,
                  struct buf *warnings, struct err *err)
{
    struct options o = {.workers = 1,
                        .age_s = OPTIONS_AGE_S,
                        .lease_s = WIRE_EXPIRY_S,
                        .drain_timeout_s = OPTIONS_DRAIN_S};
    bool given[OPT_COUNT] = {false};
    const char *config = variable_of(envp, OPT_CONFIG);
    int r = 0;

    /* flags are looked through twice: the file that one may name comes first */
    for (int i = 1; i < argc; i++) {
        enum option_id id;
        const char *value = NULL;
        r = flag_at(argc, argv, &i, &id, &value, err);
        if (r < 0)
            return r;
        if (id == OPT_CONFIG)
            config = value;
        if (id == OPT_HELP || id == OPT_VERSION) {
            o.what = id == OPT_HELP ? OPTIONS_HELP : OPTIONS_VERSION;
            *ret = o;
            return 0;
        }
    }
    if (config)
        r = parse_config(&o, config, err);
    for (int id = 0; id < OPT_COUNT && r >= 0; id++) {
        const char *value =
            descs[id].config ? variable_of(envp, (enum option_id)id) : NULL;
        if (value)
            r = parse_variable(&o, (enum option_id)id, value, err);
    }
    for (int i = 1; i < argc && r >= 0; i++) {
        enum option_id id;
        const char *value = NULL;
        struct source from = {.err = err};
        r = flag_at(argc, argv, &i, &id, &value, err);
        if (r < 0)
            break;
        snprintf(from.name, sizeof(from.name), "--%s", descs[id].flag);
        if (!given[id]) /* of two single values the last one wins */
            clear_many(&o, id);
        given[id] = true;
        r = set_option(&o, id, value, &from);
    }
    if (r >= 0 && !o.n_listen) {
        struct source from = {.name = "--listen", .err = err};
        r = add_listen(&o, OPTIONS_LISTEN, &from);
    }
    if (r >= 0 && !o.state)
        r = err_set(err, ERR_INVALID,
                    "--state is missing: name the folder where everything "
                    "shall lie");
    if (r < 0) {
        options_release(&o);
        return r;
    }
    warn_of_unknown(envp, warnings);
    *ret = o;
    return 0;
}

void options_release(struct options *o)
{
    clear_many(o, OPT_LISTEN);
    clear_many(o, OPT_DATA_ROOT);
    clear_many(o, OPT_HOST);
    clear_many(o, OPT_SHARE);
    free(o->state);
    o->state = NULL;
}
