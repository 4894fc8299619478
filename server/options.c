#include "server/options.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/wire.h"
#include "server/option.h"

#define CONFIG_MAX (1024 * 1024)

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for the options");
}

/* Variables that others read: the worker, scripts, tests. */
static const char *const foreign[] = {
    "PAWL_MEMORY_PROBE",  "PAWL_TOKEN", "PAWL_TOKEN_FILE",
    "PAWL_SERVER",        "PAWL_TRACE", "PAWL_REEXEC",
    "PAWL_WORKER_LABELS", "PAWL_CACHE", "PAWL_CACHE_MB",
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

static void config_key(enum option_id id, char out[32])
{
    snprintf(out, 32, "%s", option_descs[id].flag);
    for (char *s = out; *s; s++)
        if (*s == '-')
            *s = '_';
}

static void variable_name(enum option_id id, char out[48])
{
    snprintf(out, 48, "PAWL_%s", option_descs[id].flag);
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
        if (config && !option_descs[i].config)
            continue;
        if (config)
            config_key((enum option_id)i, key);
        size_t d = distance(name, config ? key : option_descs[i].flag);
        if (d < best_distance && d < strlen(option_descs[i].flag)) {
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
        struct option_source from = {.err = err};
        int id = 0;
        for (; id < OPT_COUNT; id++) {
            char name[32];
            config_key((enum option_id)id, name);
            if (option_descs[id].config && !strcmp(name, key))
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
        option_clear(o, (enum option_id)id);
        int r = option_set_json(o, (enum option_id)id, value, &from);
        if (r < 0)
            return r;
    }
    return 0;
}

static int parse_variable(struct options *o, enum option_id id,
                          const char *value, struct err *err)
{
    struct option_source from = {.err = err};
    variable_name(id, from.name);
    if (!option_descs[id].many)
        return option_set(o, id, value, &from);
    option_clear(o, id);
    AUTO_FREE char *copy = strdup(value);
    if (!copy)
        return no_memory(err);
    char *rest = NULL;
    for (char *one = strtok_r(copy, ",", &rest); one;
         one = strtok_r(NULL, ",", &rest)) {
        int r = option_set(o, id, one, &from);
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
            known = option_descs[id].value && strlen(name) == len &&
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
    while (id < OPT_COUNT && strcmp(option_descs[id].flag, name))
        id++;
    if (id == OPT_COUNT) {
        enum option_id like = nearest(name, false);
        return err_set(err, ERR_INVALID, "unknown flag --%s%s%s%s", name,
                       like == OPT_COUNT ? "" : "; did you mean --",
                       like == OPT_COUNT ? "" : option_descs[like].flag,
                       like == OPT_COUNT ? ": see pawld --help" : "?");
    }
    *ret_id = (enum option_id)id;
    *ret_value = arg[2 + len] ? arg + 2 + len + 1 : NULL;
    if (!option_descs[id].value)
        return *ret_value ? err_set(err, ERR_INVALID, "--%s takes no value",
                                    option_descs[id].flag)
                          : 0;
    if (!*ret_value) {
        if (*i + 1 >= argc)
            return err_set(err, ERR_INVALID, "--%s needs a value",
                           option_descs[id].flag);
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
        const char *value = option_descs[id].config
                                ? variable_of(envp, (enum option_id)id)
                                : NULL;
        if (value)
            r = parse_variable(&o, (enum option_id)id, value, err);
    }
    for (int i = 1; i < argc && r >= 0; i++) {
        enum option_id id;
        const char *value = NULL;
        struct option_source from = {.err = err};
        r = flag_at(argc, argv, &i, &id, &value, err);
        if (r < 0)
            break;
        snprintf(from.name, sizeof(from.name), "--%s", option_descs[id].flag);
        if (!given[id]) /* of two single values the last one wins */
            option_clear(&o, id);
        given[id] = true;
        r = option_set(&o, id, value, &from);
    }
    if (r >= 0 && !o.n_listen) {
        struct option_source from = {.name = "--listen", .err = err};
        r = option_set(&o, OPT_LISTEN, OPTIONS_LISTEN, &from);
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
    option_clear(o, OPT_LISTEN);
    option_clear(o, OPT_DATA_ROOT);
    option_clear(o, OPT_HOST);
    option_clear(o, OPT_SHARE);
    free(o->state);
    o->state = NULL;
}
