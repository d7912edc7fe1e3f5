/* test_cgroup.c - limits of control groups, read from folders that look like a machine's. */
#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "test.h"

/* A file of a machine, its path from the root. */
struct made {
    const char *path, *text;
};

struct machine {
    const char *name;
    struct made files[16];
    uint64_t memory; /* expected */
    int processors;
};

#define GB (1000000000ull)
#define MEMINFO                                                                                    \
    { "/proc/meminfo", "MemTotal:       20000000 kB\nMemAvailable:    8000000 kB\nBuffers: 1 kB\n" }
#define AVAILABLE (8000000ull << 10)
/* As on a machine with systemd, and inside a container that sees its own group as the root. */
#define MOUNT_2(root)                                                                              \
    {                                                                                              \
        "/proc/self/mountinfo",                                                                    \
            "22 1 0:20 / /proc rw - proc proc rw\n"                                                \
            "31 22 0:27 " root                                                                     \
            " /sys/fs/cgroup ro,nosuid shared:9 master:2 - cgroup2 cgroup rw,nsdelegate\n"         \
    }
#define MOUNT_1(root)                                                                              \
    {                                                                                              \
        "/proc/self/mountinfo",                                                                    \
            "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"                  \
            "32 31 0:29 " root " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"   \
            "33 31 0:30 " root " /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"             \
            "35 31 0:32 " root " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"             \
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"                        \
    }
#define GROUP_1(path)                                                                              \
    {                                                                                              \
        "/proc/self/cgroup", "9:name=systemd:/\n4:memory:" path "\n3:cpuset:/other\n"              \
                             "2:cpu,cpuacct:" path "\n0::/\n"                                      \
    }

/* clang-format off */
static const struct machine machines[] = {
    {"without groups", {MEMINFO}, AVAILABLE, 0},
    {"without anything", {{0}}, UINT64_MAX, 0},
    {"version 2 without limits", {MEMINFO, MOUNT_2("/"), {"/proc/self/cgroup", "0::/a/b\n"},
        {"/sys/fs/cgroup/a/memory.max", "max\n"}, {"/sys/fs/cgroup/a/memory.high", "max\n"},
        {"/sys/fs/cgroup/a/memory.current", "5\n"}, {"/sys/fs/cgroup/a/cpu.max", "max 100000\n"}},
        AVAILABLE, 0},
    {"memory.max of the own group", {MEMINFO, MOUNT_2("/"), {"/proc/self/cgroup", "0::/a/b\n"},
        {"/sys/fs/cgroup/a/b/memory.max", "4000000000\n"}, {"/sys/fs/cgroup/a/b/memory.current", "1000000000\n"},
        {"/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"}},
        3 * GB, 4},
    {"memory.max and quota of a group above", {MEMINFO, MOUNT_2("/"), {"/proc/self/cgroup", "0::/a/b/c\n"},
        {"/sys/fs/cgroup/a/b/c/memory.max", "max\n"}, {"/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n"},
        {"/sys/fs/cgroup/a/b/memory.max", "6000000000\n"}, {"/sys/fs/cgroup/a/b/memory.current", "1000000000\n"},
        {"/sys/fs/cgroup/a/memory.max", "4000000000\n"}, {"/sys/fs/cgroup/a/memory.current", "1500000000\n"},
        {"/sys/fs/cgroup/a/b/cpu.max", "800000 100000\n"}, {"/sys/fs/cgroup/a/cpu.max", "250000 100000\n"}},
        2500000000, 3},
    {"memory.high", {MEMINFO, MOUNT_2("/"), {"/proc/self/cgroup", "0::/a\n"},
        {"/sys/fs/cgroup/a/memory.max", "max\n"}, {"/sys/fs/cgroup/a/memory.high", "2000000000\n"},
        {"/sys/fs/cgroup/a/memory.current", "500000000\n"}},
        1500000000, 0},
    {"page cache is free", {MEMINFO, MOUNT_2("/"), {"/proc/self/cgroup", "0::/a\n"},
        {"/sys/fs/cgroup/a/memory.max", "4000000000\n"}, {"/sys/fs/cgroup/a/memory.current", "3900000000\n"},
        {"/sys/fs/cgroup/a/memory.stat", "anon 800000000\nfile 3000000000\nshmem 9\ninactive_anon 7\nactive_anon 7\n"
            "inactive_file 2000000000\nactive_file 900000000\nunevictable 5\nslab_reclaimable 100000000\n"}},
        3100000000, 0},
    {"more page cache than is used", {MEMINFO, MOUNT_2("/"), {"/proc/self/cgroup", "0::/a\n"},
        {"/sys/fs/cgroup/a/memory.max", "1000\n"}, {"/sys/fs/cgroup/a/memory.current", "10\n"},
        {"/sys/fs/cgroup/a/memory.stat", "inactive_file 20\n"}},
        1000, 0},
    {"above its limit", {MEMINFO, MOUNT_2("/"), {"/proc/self/cgroup", "0::/a\n"},
        {"/sys/fs/cgroup/a/memory.max", "1000\n"}, {"/sys/fs/cgroup/a/memory.current", "1001\n"}},
        0, 0},
    {"a container that is the root it sees", {MEMINFO, MOUNT_2("/"), {"/proc/self/cgroup", "0::/\n"},
        {"/sys/fs/cgroup/memory.max", "4000000000\n"}, {"/sys/fs/cgroup/memory.current", "1000000000\n"},
        {"/sys/fs/cgroup/cpu.max", "50000 100000\n"}},
        3 * GB, 1},
    {"a container that sees its path outside", {MEMINFO, MOUNT_2("/docker/17"), {"/proc/self/cgroup", "0::/docker/17/in\n"},
        {"/sys/fs/cgroup/memory.max", "4000000000\n"}, {"/sys/fs/cgroup/memory.current", "1000000000\n"},
        {"/sys/fs/cgroup/in/memory.max", "3000000000\n"}, {"/sys/fs/cgroup/in/memory.current", "900000000\n"}},
        2100000000, 0},
    {"a group outside of what is mounted", {MEMINFO, MOUNT_2("/docker/17"), {"/proc/self/cgroup", "0::/docker/170\n"},
        {"/sys/fs/cgroup/memory.max", "4000000000\n"}, {"/sys/fs/cgroup/memory.current", "1000000000\n"}},
        3 * GB, 0},
    {"a group above the root it sees", {MEMINFO, MOUNT_2("/"), {"/proc/self/cgroup", "0::/../../x\n"},
        {"/sys/fs/cgroup/memory.max", "4000000000\n"}, {"/sys/fs/cgroup/memory.current", "1000000000\n"}},
        3 * GB, 0},
    {"version 1", {MEMINFO, MOUNT_1("/"), GROUP_1("/a/b"),
        {"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"},
        {"/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "5\n"},
        {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4000000000\n"},
        {"/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "3900000000\n"},
        {"/sys/fs/cgroup/memory/a/memory.stat", "inactive_file 7\ntotal_inactive_file 1000000000\ntotal_active_file 100000000\n"},
        {"/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n"},
        {"/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n"},
        {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "200000\n"},
        {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"}},
        1200000000, 2},
    {"version 1, limited where it cannot be seen", {MEMINFO, MOUNT_1("/docker/17"), GROUP_1("/docker/17"),
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
        {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000000\n"},
        {"/sys/fs/cgroup/memory/memory.stat", "cache 1\nhierarchical_memory_limit 2000000000\n"}},
        GB, 0},
};
/* clang-format on */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

/* Writes a file and the folders above it. */
static void make_file(const char *root, const struct made *file) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, file->path);
    for (char *slash = path + strlen(root); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        EXPECT(mkdir(path, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    EXPECT(f && fputs(file->text, f) >= 0 && fclose(f) == 0);
}

static void check_machine(const struct machine *m) {
    const char *root = test_temporary("machine");
    for (const struct made *f = m->files; f->path; f++)
        make_file(root, f);
    uint64_t memory = memory_available_at(root);
    int processors = cgroup_processors(root);
    if (memory != m->memory || processors != m->processors)
        test_fail(__FILE__, __LINE__, "%s: %llu bytes, %d processors, expected %llu and %d",
                  m->name, (unsigned long long)memory, processors, (unsigned long long)m->memory,
                  m->processors);
    nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

TEST(cgroup_limits_of_all_groups_above) {
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        check_machine(&machines[i]);
}

TEST(cgroup_limits_of_this_machine) {
    int quota = cgroup_processors("");
    EXPECT(!quota || cpu_count() <= quota);
    EXPECT(memory_available() > 0);
}
