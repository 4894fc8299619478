/* The host's memory on macOS: the task's physical footprint (what the system
 * judges a process by), the VM statistics, the swap use. */
#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#include <unistd.h>
#include "worker/memory.h"

void memory_host(struct memory_sample *ret)
{
    ret->rss = ret->available = ret->swap = -1;
    task_vm_info_data_t task;
    mach_msg_type_number_t n = TASK_VM_INFO_COUNT;
    if (task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)&task, &n) ==
        KERN_SUCCESS)
        ret->rss = (int64_t)task.phys_footprint;

    vm_statistics64_data_t vm;
    n = HOST_VM_INFO64_COUNT;
    mach_port_t host = mach_host_self();
    if (host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&vm, &n) ==
        KERN_SUCCESS)
        ret->available =
            ((int64_t)vm.free_count + vm.inactive_count + vm.purgeable_count) *
            (int64_t)sysconf(_SC_PAGESIZE);
    mach_port_deallocate(mach_task_self(), host);

    struct xsw_usage swap;
    size_t len = sizeof swap;
    if (sysctlbyname("vm.swapusage", &swap, &len, NULL, 0) == 0)
        ret->swap = (int64_t)swap.xsu_used;
}
int64_t memory_total(void)
{
    int64_t bytes = 0;
    size_t len = sizeof bytes;
    return sysctlbyname("hw.memsize", &bytes, &len, NULL, 0) == 0 ? bytes : 0;
}

int64_t memory_limits_left(void)
{
    return INT64_MAX;
}
#else
typedef int memory_darwin_is_empty;
#endif
