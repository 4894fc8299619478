#include "tests/bench/feed_simdjson.h"
#include <cstdint>
#include <simdjson.h>
#include <vector>

using namespace simdjson;

static std::vector<int32_t> ints;
static std::vector<float> nums;
static size_t strings;

// By name and type, as one writes it who knows the records.
extern "C" long bare_ondemand(const char *line, size_t len)
{
    static ondemand::parser parser;
    ints.clear();
    nums.clear();
    auto doc = parser.iterate(line, len, len + SIMDJSON_PADDING);
    ondemand::object record = doc.get_object().value();
    for (auto field : record) {
        ondemand::raw_json_string key = field.key().value();
        ondemand::value value = field.value().value();
        if (key == "state" || key == "history") {
            for (auto x : value.get_array())
                ints.push_back(int32_t(x.get_int64().value()));
        } else if (key == "objects" || key == "legal") {
            for (auto row : value.get_array())
                for (auto x : row.get_array())
                    ints.push_back(int32_t(x.get_int64().value()));
        } else if (key == "policy") {
            for (auto x : value.get_array())
                nums.push_back(float(x.get_double().value()));
        } else if (key == "value") {
            nums.push_back(float(value.get_double().value()));
        } else {
            strings += value.get_string().value().size();
        }
    }
    return long(ints.size() + nums.size());
}

static void take(dom::element e)
{
    switch (e.type()) {
    case dom::element_type::ARRAY: {
        dom::array a = e.get_array().value_unsafe();
        for (dom::element x : a)
            take(x);
        break;
    }
    case dom::element_type::INT64:
        ints.push_back(int32_t(e.get_int64().value_unsafe()));
        break;
    case dom::element_type::DOUBLE:
        nums.push_back(float(e.get_double().value_unsafe()));
        break;
    case dom::element_type::STRING:
        strings += e.get_string().value_unsafe().size();
        break;
    default:
        break;
    }
}

extern "C" long bare_dom(const char *line, size_t len)
{
    static dom::parser parser;
    ints.clear();
    nums.clear();
    dom::object record = parser.parse(line, len, false).get_object().value();
    for (dom::key_value_pair field : record)
        take(field.value);
    return long(ints.size() + nums.size());
}
