// SPDX-License-Identifier: Apache-2.0
// misuse DEED FILE: what a tenant does to a file it was given. Prints its account's inode and what became of it, then keeps all it has until it is killed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define MIB (1L << 20)
// A file capability of version 2: all of them, permitted and effective.
static const unsigned capabilities[] = {0x02000001, ~0u, 0, ~0u, 0};

// Nothing waits for a lease that another has: the file is opened without waiting.
static int opened(const char *file, int flags) { return open(file, flags | O_NONBLOCK | O_CLOEXEC); }

static int leased(const char *file, int flags, int kind) {
    signal(SIGIO, SIG_IGN);
    int found = opened(file, flags);
    return found < 0 ? -1 : fcntl(found, F_SETLEASE, kind);
}

// The lease that is had beside the plugin's look: the file is new to it when it has grown.
static int grown_and_leased(const char *file, int kind) {
    struct stat status;
    return stat(file, &status) || truncate(file, status.st_size + 1) ? -1 : leased(file, O_RDONLY, kind);
}

static int program_of(const char *file) {
    int to = opened(file, O_RDWR), from = open("/proc/self/exe", O_RDONLY);
    struct stat status;
    if (to < 0 || from < 0 || fstat(from, &status)) return -1;
    for (off_t at = 0; at < status.st_size;)
        if (sendfile(to, from, &at, status.st_size - at) <= 0) return -1;
    return fchmod(to, 06755);
}

static int filled(const char *file, long bytes) {
    int found = opened(file, O_RDWR);
    return found < 0 || fchmod(found, 0) ? -1 : fallocate(found, 0, 0, bytes);
}

static int locked(const char *file) {
    int found = opened(file, O_RDWR);
    struct flock all = {.l_type = F_WRLCK};
    return found < 0 || flock(found, LOCK_EX | LOCK_NB) ? -1 : fcntl(found, F_SETLK, &all);
}

static int replaced(const char *file) {
    char beside[4096];
    snprintf(beside, sizeof beside, "%s.new", file);
    int made = open(beside, O_CREAT | O_WRONLY, 0666);
    return made < 0 ? -1 : rename(beside, file);
}

// Until it is killed, as much as there is.
static int filled_again(const char *file) {
    int found = opened(file, O_RDWR);
    if (found < 0 || fchmod(found, 0)) return -1;
    for (long size = MIB;; usleep(1000))
        if (fallocate(found, 0, 0, size) == 0) size += MIB;
        else size = MIB;
}

static int cut_again(const char *file) {
    for (;; usleep(100000))
        if (truncate(file, 0)) return -1;
}

static int done(const char *deed, const char *file) {
#define DEED(name, what) \
    if (!strcmp(deed, name)) return what
    DEED("read-lease", leased(file, O_RDONLY, F_RDLCK));
    DEED("grown-read-lease", grown_and_leased(file, F_RDLCK));
    DEED("write-lease", leased(file, O_RDONLY, F_WRLCK));
    DEED("lock", locked(file));
    DEED("setuid", program_of(file));
    DEED("capabilities", setxattr(file, "security.capability", capabilities, sizeof capabilities, 0));
    DEED("attributes", setxattr(file, "user.note", capabilities, sizeof capabilities, 0));
    DEED("hide", chmod(file, 0));
    DEED("give-away", chown(file, 65534, 65534) || chmod(file, 06755));
    DEED("grow", truncate(file, 16 * MIB));
    DEED("sparse", truncate(file, MIB << 20));
    DEED("hide-and-fill", filled(file, 64 * MIB));
    DEED("cut", truncate(file, 0));
    DEED("unlink", unlink(file));
    DEED("replace", replaced(file));
    DEED("fill-again", filled_again(file));
    DEED("cut-again", cut_again(file));
    fprintf(stderr, "misuse: no deed %s\n", deed);
    exit(2);
}

int main(int count, char **words) {
    struct stat status;
    if (count != 3 || stat("/run/kube-accel/state", &status)) return fprintf(stderr, "misuse DEED FILE\n"), 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%lu\n", (unsigned long)status.st_ino);
    puts(done(words[1], words[2]) ? strerrorname_np(errno) : "done");
    for (;;) pause();
}
