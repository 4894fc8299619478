#include "schema/rfc3339.h"
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

void rfc3339_text(int64_t ms, char out[RFC3339_MAX])
{
    time_t s = (time_t)(ms / 1000);
    struct tm tm;
    char head[24];
    gmtime_r(&s, &tm);
    strftime(head, sizeof(head), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out, RFC3339_MAX, "%s.%03dZ", head, (int)(ms % 1000));
}

/* Exactly n digits, then the character `after` (NUL: whatever). -1: not so. */
static int digits(const char **p, int n, char after)
{
    int v = 0;
    for (int i = 0; i < n; i++, (*p)++) {
        if (**p < '0' || **p > '9')
            return -1;
        v = v * 10 + (**p - '0');
    }
    if (after && *(*p)++ != after)
        return -1;
    return v;
}

static bool is_leap(int y)
{
    return (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
}

static int64_t days_since_1970(int y, int month, int day)
{
    static const int before[] = {0,   31,  59,  90,  120, 151,
                                 181, 212, 243, 273, 304, 334};
    int64_t whole = y - 1;
    int64_t days = whole * 365 + whole / 4 - whole / 100 + whole / 400;
    return days - 719162 + before[month - 1] + (month > 2 && is_leap(y)) + day -
           1;
}

static bool is_date(int y, int month, int day)
{
    static const int length[] = {31, 28, 31, 30, 31, 30,
                                 31, 31, 30, 31, 30, 31};
    return y >= 1 && month >= 1 && month <= 12 && day >= 1 &&
           day <= length[month - 1] + (month == 2 && is_leap(y));
}

int rfc3339_parse(const char *text, int64_t *ret_ms)
{
    const char *p = text;
    int y = digits(&p, 4, '-'), month = y < 0 ? -1 : digits(&p, 2, '-');
    int day = month < 0 ? -1 : digits(&p, 2, 0);
    if (day < 0 || !is_date(y, month, day) || (*p != 'T' && *p != 't'))
        return -1;
    p++;
    int hour = digits(&p, 2, ':'), minute = hour < 0 ? -1 : digits(&p, 2, ':');
    int second = minute < 0 ? -1 : digits(&p, 2, 0);
    if (second < 0 || hour > 23 || minute > 59 || second > 60)
        return -1; /* 60: a leap second is the one after it */

    int ms = 0;
    if (*p == '.') {
        int unit = 100, n = 0;
        for (p++; *p >= '0' && *p <= '9'; p++, n++, unit /= 10)
            ms += (*p - '0') * unit;
        if (!n)
            return -1;
    }
    int64_t east_s = 0;
    if (*p == 'Z' || *p == 'z') {
        p++;
    } else if (*p == '+' || *p == '-') {
        int sign = *p++ == '-' ? -1 : 1;
        int h = digits(&p, 2, ':'), m = h < 0 ? -1 : digits(&p, 2, 0);
        if (m < 0 || h > 23 || m > 59)
            return -1;
        east_s = sign * (h * 3600 + m * 60);
    } else {
        return -1;
    }
    if (*p)
        return -1;
    int64_t s = days_since_1970(y, month, day) * 86400 + hour * 3600 +
                minute * 60 + second - east_s;
    if (s < 0)
        return -1;
    *ret_ms = s * 1000 + ms;
    return 0;
}
