// torch_describe.cpp - what the library is: another one gives other bits.
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <torch/version.h>
#include <cstring>
#include <string>
#include "worker/device.h"
#include "worker/kernels.h"
#include "worker/torch_shim.h"

static void set_text(json_t *into, const char *key, const char *text)
{
    // Names of the machine need not be UTF-8.
    json_t *value = text ? json_string(text) : nullptr;
    json_object_set_new(into, key, value ? value : json_null());
}

// The file that sgemm comes from, following links: which BLAS the system's
// alternatives gave us. Wheels hide theirs inside libtorch: null.
static void describe_blas(json_t *into)
{
    void *sgemm = dlsym(RTLD_DEFAULT, "sgemm_");
    Dl_info info;
    std::string file;
    if (sgemm && dladdr(sgemm, &info) && info.dli_fname) {
        char *real = realpath(info.dli_fname, nullptr);
        file = real ? real : info.dli_fname;
        free(real);
        size_t slash = file.rfind('/');
        if (slash != std::string::npos) {
            // Debian's builds differ in the folder alone:
            // openblas-openmp/libblas.so.3 and openblas-pthread/libblas.so.3.
            size_t before = file.rfind('/', slash - 1);
            file = file.substr(before == std::string::npos ? slash + 1
                                                           : before + 1);
        }
    }
    set_text(into, "blas", file.empty() ? nullptr : file.c_str());
    typedef char *text_fn(void);
    auto config = (text_fn *)dlsym(RTLD_DEFAULT, "openblas_get_config");
    auto core = (text_fn *)dlsym(RTLD_DEFAULT, "openblas_get_corename");
    set_text(into, "blas_config", config ? config() : nullptr);
    set_text(into, "blas_core", core ? core() : nullptr);
}

// "CPU capability usage: AVX2" is all that 1.13 says in public.
static std::string cpu_capability()
{
    std::string all = at::show_config();
    const char before[] = "CPU capability usage: ";
    size_t at = all.find(before);
    if (at == std::string::npos)
        return "";
    at += strlen(before);
    return all.substr(at, all.find('\n', at) - at);
}

json_t *torch_describe(void)
{
    json_t *all = json_object();
    try {
        set_text(all, "libtorch", TORCH_VERSION);
        describe_blas(all);
        set_text(all, "cpu_capability", cpu_capability().c_str());
        set_text(all, "kernels", kernels()->name);
        device_describe(all);
    } catch (...) { // what is known so far
    }
    return all;
}

static bool offers_mps()
{
#if TORCH_VERSION_MAJOR >= 2
    return at::hasMPS();
#else
    return false; // 1.13's MPS lacks what the memory policy needs
#endif
}

const char *torch_best_device(void)
{
    try {
        return at::hasCUDA() ? "cuda" : offers_mps() ? "mps" : "cpu";
    } catch (...) {
        return "cpu";
    }
}

json_t *torch_devices(void)
{
    json_t *all = json_array();
    const char *best = torch_best_device();
    if (strcmp(best, "cpu")) {
        json_t *one = json_pack("{s:s}", "kind", best);
        json_array_append_new(all, one);
        try {
            device_facts(best, one);
        } catch (...) { // its kind is known
        }
    }
    json_array_append_new(all, json_pack("{s:s}", "kind", "cpu"));
    return all;
}
