// SPDX-License-Identifier: Apache-2.0
//
// What the kernel of a node would answer for /proc/<pid>/cgroup of a simulated pod's processes: a simulated container is
// a process like any other, and moving it into a cgroup takes root. Whose it is says SIMPOD_UID in its environment, or in
// that of its session's first process. Other processes have the cgroups that they have.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

typedef int (*openat_function)(int directory, const char *path, int flags, ...);

static int real_openat(int directory, const char *path, int flags, mode_t mode) {
    return ((openat_function)dlsym(RTLD_NEXT, "openat"))(directory, path, flags, mode);
}

static bool pod_of(pid_t pid, char *uid, size_t size) {
    char name[64], *variable = NULL;
    size_t room = 0;
    snprintf(name, sizeof name, "/proc/%d/environ", (int)pid);
    FILE *file = fopen(name, "re");
    bool found = false;
    while (file != NULL && !found && getdelim(&variable, &room, '\0', file) >= 0)
        if ((found = strncmp(variable, "SIMPOD_UID=", 11) == 0))
            snprintf(uid, size, "%s", variable + 11);
    free(variable);
    if (file != NULL)
        fclose(file);
    return found;
}

// A file with the answer; -1 where the kernel knows better.
static int answer(const char *path) {
    int pid, end = 0;
    char uid[64];
    if (path == NULL || sscanf(path, "/proc/%d/cgroup%n", &pid, &end) != 1 || end == 0 || path[end] != '\0')
        return -1;
    pid_t first = getsid(pid);
    if (first < 0 || (!pod_of(pid, uid, sizeof uid) && !pod_of(first, uid, sizeof uid)))
        return -1;
    for (char *at = uid; *at != '\0'; at++)
        if (*at == '-')
            *at = '_';
    int file = memfd_create("cgroup", MFD_CLOEXEC);
    if (file >= 0) {
        dprintf(file, "0::/kubepods.slice/kubepods-pod%s.slice/cri-containerd-%064x.scope\n", uid, (unsigned)first);
        lseek(file, 0, SEEK_SET);
    }
    return file;
}

#define MODE(last)                                                              \
    mode_t mode = 0;                                                            \
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {                                 \
        va_list more;                                                           \
        va_start(more, last);                                                   \
        mode = va_arg(more, mode_t);                                            \
        va_end(more);                                                           \
    }                                                                           \
    int file = answer(path)

#define OPEN(name)                                                              \
    API int name(const char *path, int flags, ...) {                            \
        MODE(flags);                                                            \
        return file >= 0 ? file : real_openat(AT_FDCWD, path, flags, mode);     \
    }

#define OPENAT(name)                                                            \
    API int name(int directory, const char *path, int flags, ...) {             \
        MODE(flags);                                                            \
        return file >= 0 ? file : real_openat(directory, path, flags, mode);    \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

