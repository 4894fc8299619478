#include "server/when.h"
#include <stdio.h>
#include <time.h>

void when_text(int64_t ms, char out[WHEN_MAX])
{
    time_t s = (time_t)(ms / 1000);
    struct tm tm;
    char head[24];
    gmtime_r(&s, &tm);
    strftime(head, sizeof(head), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out, WHEN_MAX, "%s.%03dZ", head, (int)(ms % 1000));
}

json_t *when_json(int64_t ms)
{
    char text[WHEN_MAX];
    if (ms <= 0)
        return json_null();
    when_text(ms, text);
    return json_string(text);
}
