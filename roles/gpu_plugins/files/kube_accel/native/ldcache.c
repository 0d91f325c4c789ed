// SPDX-License-Identifier: Apache-2.0
// ldcache [--only POLICY] DIRECTORY... -- NAME...: an OCI hook (createRuntime) that enters the driver's libraries into the loader's cache of a
// container.
//
// The container's root file system is hostile input, and this runs as root of the host. Nothing of it is executed. After chroot no path leads out
// of it, and at createRuntime no volume of the pod is mounted in it. The cache is read as data, checked, and replaced in one step.
//
// A container starts whatever is wrong with its cache: the loader finds the libraries without it too. One line on stderr says what was wrong.
//
// With --only the container starts with this policy of the host and without a whole GPU, or not at all: of two CDI devices that bring files to
// the same places the last one would win, and the share of the other would have no limits. The bundle's config.json says what will be mounted.
//
// Format: glibc's sysdeps/generic/dl-cache.h (glibc-ld.so.cache1.1, with extensions since 2.33).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POLICY           "/etc/kube-accel/policy"
#define WHOLE            "/etc/kube-accel/whole" // what a container with a whole GPU has
#define CACHE            "/etc/ld.so.cache"
#define DRAFT            "/etc/.ld.so.cache.kube-accel"
#define OLD_MAGIC        "ld.so-1.7.0"
#define MAGIC            "glibc-ld.so.cache1.1"
#define EXTENSION_MAGIC  0xeaa42174u
#define EXTENSION_HWCAPS 1u
#define MOST_BYTES       (16u << 20)
#define MOST_CONFIG      (64u << 20)
#if defined __x86_64__
#define LOADER "/lib64/ld-linux-x86-64.so.2"
#define FLAGS  0x0303 // FLAG_X8664_LIB64 | FLAG_ELF_LIBC6
#elif defined __aarch64__
#define LOADER "/lib/ld-linux-aarch64.so.1"
#define FLAGS  0x0a03 // FLAG_AARCH64_LIB64 | FLAG_ELF_LIBC6
#else
#error "no driver of NVIDIA's for this machine"
#endif

struct header {
    char magic[20];
    uint32_t entries, strings;
    uint8_t byte_order, padding[3]; // 0: not told, 2: little-endian
    uint32_t extensions, unused[3];
};
struct entry {
    int32_t flags;
    uint32_t key, value, os_version;
    uint64_t hwcap;
};
struct old_header {
    char magic[11];
    uint32_t entries;
};
struct old_entry {
    int32_t flags;
    uint32_t key, value;
};
struct bytes {
    char *at;
    size_t size;
};

static void say(const char *what) {
    fprintf(stderr, "kube-accel ldcache: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
}

static void *room(size_t size) {
    void *got = calloc(1, size ? size : 1);
    if (!got) {
        say("no memory");
        exit(0);
    }
    return got;
}

// A regular file and nothing else: opening a device or a pipe of the image could do something.
static struct bytes slurp(const char *path, size_t most) {
    struct bytes got = {0};
    struct stat status;
    if (stat(path, &status) || !S_ISREG(status.st_mode) || status.st_size > (off_t)most) return got;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return got;
    got.at = room((size_t)status.st_size);
    while (got.size < (size_t)status.st_size) {
        ssize_t n = read(fd, got.at + got.size, (size_t)status.st_size - got.size);
        if (n <= 0) break;
        got.size += (size_t)n;
    }
    close(fd);
    return got;
}

// ---- where the container's root is: the runtime's state on stdin names the bundle, its config.json the root

struct json {
    const char *at, *end;
};

static void blank(struct json *j) {
    while (j->at < j->end && strchr(" \t\r\n", *j->at)) j->at++;
}

static bool sign(struct json *j, char wanted) {
    blank(j);
    if (j->at >= j->end || *j->at != wanted) return false;
    j->at++;
    return true;
}

static int hex(struct json *j) {
    int value = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        if (j->at >= j->end) return -1;
        const char *digits = "0123456789abcdef", *found = strchr(digits, *j->at | 32);
        if (!*j->at || !found) return -1;
        value = value * 16 + (int)(found - digits);
    }
    return value;
}

// A string as bytes; too long a one, a NUL and a surrogate make it one that names nothing.
static bool text(struct json *j, char *out, size_t size) {
    size_t n = 0;
    if (!sign(j, '"')) return false;
    while (j->at < j->end && *j->at != '"') {
        int c = (unsigned char)*j->at++;
        if (c == '\\') {
            if (j->at >= j->end) return false;
            const char *from = "\"\\/bfnrt", *to = "\"\\/\b\f\n\r\t", *found = strchr(from, *j->at);
            if (*j->at == 'u') {
                j->at++;
                c = hex(j);
                if (c < 0) return false;
                if (c == 0 || c > 0x7f) c = 1;
            } else if (*j->at && found) {
                c = to[found - from];
                j->at++;
            } else {
                return false;
            }
        }
        if (n + 1 < size) out[n] = (char)c;
        n++;
    }
    if (size) out[n < size ? n : 0] = 0;
    return sign(j, '"');
}

// Past one value of any kind.
static bool pass(struct json *j) {
    int depth = 0;
    do {
        blank(j);
        if (j->at >= j->end) return false;
        if (*j->at == '"') {
            if (!text(j, NULL, 0)) return false;
        } else if (strchr("{[", *j->at)) {
            depth++;
            j->at++;
            continue;
        } else if (strchr("}]", *j->at)) {
            depth--;
            j->at++;
        } else if (strchr(",:", *j->at)) {
            if (!depth) return false;
            j->at++;
            continue;
        } else {
            while (j->at < j->end && !strchr(",:{}[]\" \t\r\n", *j->at)) j->at++;
        }
    } while (depth > 0);
    return depth == 0;
}

// Up to the value of this key of the object that begins here.
static bool member(struct json *j, const char *wanted) {
    char key[64];
    if (!sign(j, '{')) return false;
    do {
        if (!text(j, key, sizeof key) || !sign(j, ':')) return false;
        if (!strcmp(key, wanted)) return true;
        if (!pass(j)) return false;
    } while (sign(j, ','));
    return false;
}

// Whether the mounts of this config.json have this policy of the host and no whole GPU; says what else there is.
static bool alone(struct json j, const char *policy) {
    char to[64], from[4096];
    bool own = false, whole = false;
    if (!member(&j, "mounts") || !sign(&j, '[')) return say("no mounts in the bundle's config.json"), false;
    do {
        struct json at = j, source = j;
        if (!member(&at, "destination") || !text(&at, to, sizeof to) || !pass(&j)) break;
        whole |= !strcmp(to, WHOLE);
        if (!strcmp(to, POLICY))
            own = member(&source, "source") && text(&source, from, sizeof from) && !strcmp(from, policy);
    } while (sign(&j, ','));
    if (own && !whole) return true;
    fprintf(stderr,
            "kube-accel: the container has %s beside a share of a GPU, and a container gets one share or whole GPUs: "
            "name one request of one claim in "
            "its resources.claims\n",
            own ? "a whole GPU" : "another share");
    return false;
}

// With a policy, into a container that has its share alone.
static bool enter(const char *only) {
    static char state[1 << 20], bundle[4096], root[4096];
    size_t size = 0;
    for (ssize_t n; size < sizeof state && (n = read(0, state + size, sizeof state - size)) > 0;) size += (size_t)n;
    struct json j = {state, state + size};
    errno = 0;
    if (!member(&j, "bundle") || !text(&j, bundle, sizeof bundle) || chdir(bundle))
        return say("no bundle in the runtime's state"), false;
    struct bytes config = slurp("config.json", MOST_CONFIG);
    j = (struct json){config.at, config.at + config.size};
    if (!config.size || !member(&j, "root") || !member(&j, "path") || !text(&j, root, sizeof root) || !*root)
        return say("no root in the bundle's config.json"), false;
    if (only && !alone((struct json){config.at, config.at + config.size}, only)) return false;
    struct stat host, container;
    if (stat("/", &host) || stat(root, &container) ||
        (host.st_dev == container.st_dev && host.st_ino == container.st_ino))
        return say("the container's root is none of its own"), false;
    if (chroot(root) || chdir("/")) return say("the container's root cannot be entered"), false;
    return true;
}

// ---- the cache

// As the loader compares names: runs of digits by their number. Entries are in descending order.
static int compare(const char *a, const char *b) {
    while (*a) {
        bool digit_a = *a >= '0' && *a <= '9', digit_b = *b >= '0' && *b <= '9';
        if (digit_a && digit_b) {
            unsigned long one = strtoul(a, (char **)&a, 10), two = strtoul(b, (char **)&b, 10);
            if (one != two) return one < two ? -1 : 1;
        } else if (digit_a || digit_b) {
            return digit_a ? 1 : -1;
        } else if (*a != *b) {
            return (unsigned char)*a - (unsigned char)*b;
        } else {
            a++;
            b++;
        }
    }
    return -(unsigned char)*b;
}

struct parsed {
    const char *base; // offsets count from here
    size_t size, strings; // all of it; where entries end
    struct header header;
    const struct entry *entries;
};

static bool is_text(const struct parsed *p, uint32_t at) {
    return at < p->size && memchr(p->base + at, 0, p->size - at);
}

// Empty is a cache without entries; false what is no cache.
static bool parse(struct bytes file, struct parsed *p) {
    size_t start = 0;
    if (file.size >= sizeof(struct old_header) && !memcmp(file.at, OLD_MAGIC, sizeof OLD_MAGIC - 1)) {
        struct old_header old;
        memcpy(&old, file.at, sizeof old);
        if (old.entries > file.size / sizeof(struct old_entry)) return false;
        start = (sizeof old + old.entries * sizeof(struct old_entry) + 7) & ~(size_t)7;
    }
    if (start > file.size || file.size - start < sizeof p->header) return false;
    p->base = file.at + start;
    p->size = file.size - start;
    memcpy(&p->header, p->base, sizeof p->header);
    if (memcmp(p->header.magic, MAGIC, sizeof p->header.magic) || (p->header.byte_order & 3 & ~2)) return false;
    if (start && p->header.extensions)
        return false; // they count from elsewhere; ldconfig --format=compat alone writes both
    if (p->header.entries > (p->size - sizeof p->header) / sizeof(struct entry)) return false;
    p->entries = (const struct entry *)(p->base + sizeof p->header);
    p->strings = sizeof p->header + p->header.entries * sizeof(struct entry);
    for (uint32_t i = 0; i < p->header.entries; i++)
        if (!is_text(p, p->entries[i].key) || !is_text(p, p->entries[i].value)) return false;
    return true;
}

// The offsets within extensions, which have moved.
static bool move_extensions(char *file, size_t size, int64_t at, int64_t by) {
    uint32_t head[2], section[4];
    if (at % 4 || at < 0 || at > (int64_t)(size - sizeof head)) return false;
    memcpy(head, file + at, sizeof head);
    if (head[0] != EXTENSION_MAGIC || head[1] > (size - (size_t)at - sizeof head) / sizeof section) return false;
    for (uint32_t i = 0; i < head[1]; i++) {
        char *place = file + at + sizeof head + i * sizeof section;
        memcpy(section, place, sizeof section);
        int64_t from = section[2] + by;
        if (from < 0 || from + section[3] > (int64_t)size) return false;
        section[2] = (uint32_t)from;
        memcpy(place, section, sizeof section);
        if (section[0] != EXTENSION_HWCAPS) continue;
        for (uint32_t j = 0; j + 4 <= section[3]; j += 4) {
            uint32_t name;
            memcpy(&name, file + from + j, sizeof name);
            if (name + by < 0 || name + by >= (int64_t)size) return false;
            name = (uint32_t)(name + by);
            memcpy(file + from + j, &name, sizeof name);
        }
    }
    return true;
}

static bool ours(const struct parsed *p, const struct entry *entry, char **names) {
    if ((entry->flags & 0xff00) != (FLAGS & 0xff00)) return false;
    for (; *names; names++)
        if (!strcmp(p->base + entry->key, *names)) return true;
    return false;
}

static int descending(const void *a, const void *b) { return compare(*(char *const *)b, *(char *const *)a); }

// The cache with these names in this directory, and with no other file by these names: what an image brings itself would come first.
static struct bytes merge(const struct parsed *p, char **names, size_t count, const char *directory) {
    struct bytes out = {0};
    size_t kept = 0, prefix = strlen(directory), more = 0;
    for (uint32_t i = 0; i < p->header.entries; i++) kept += !ours(p, &p->entries[i], names);
    for (size_t i = 0; i < count; i++) more += strlen(names[i]) + prefix + 2;
    more = (more + 7) & ~(size_t)7;
    size_t begin = sizeof p->header + (kept + count) * sizeof(struct entry);
    // What follows the entries stays as it is and moves.
    int64_t by = (int64_t)(begin + more) - (int64_t)p->strings;
    out.size = begin + more + (p->size - p->strings);
    out.at = room(out.size);
    memcpy(out.at + begin + more, p->base + p->strings, p->size - p->strings);

    struct entry *to = (struct entry *)(out.at + sizeof p->header);
    char *strings = out.at + begin;
    uint32_t from = 0;
    for (size_t i = 0;; i++) {
        for (; from < p->header.entries; from++) {
            const struct entry *old = &p->entries[from];
            if (ours(p, old, names)) continue;
            if (i < count && compare(p->base + old->key, names[i]) < 0) break;
            *to = *old;
            to->key = (uint32_t)(to->key + by);
            to->value = (uint32_t)(to->value + by);
            to++;
        }
        if (i == count) break;
        // The name is the end of its path.
        *to = (struct entry){.flags = FLAGS, .value = (uint32_t)(strings - out.at)};
        (to++)->key = (uint32_t)(strings - out.at + prefix + 1);
        strings += sprintf(strings, "%s/%s", directory, names[i]) + 1;
    }
    struct header header = p->header;
    header.entries = (uint32_t)(kept + count);
    header.strings += (uint32_t)more;
    if (header.extensions) {
        if (!move_extensions(out.at, out.size, header.extensions + by, by)) return (struct bytes){0};
        header.extensions = (uint32_t)(header.extensions + by);
    }
    memcpy(out.at, &header, sizeof header);
    return out;
}

// The directory in which this container has its C library, when the driver's are in it too; else the first named one.
static const char *place(const struct parsed *p, char **directories) {
    static char best[4096], real[4096];
    for (uint32_t i = 0; i < p->header.entries; i++) {
        if (p->entries[i].flags != FLAGS || strcmp(p->base + p->entries[i].key, "libc.so.6")) continue;
        const char *path = p->base + p->entries[i].value, *end = strrchr(path, '/');
        if (*path != '/' || (size_t)(end - path) >= sizeof best) continue;
        memcpy(best, path, (size_t)(end - path));
        best[end - path] = 0;
        if (!realpath(best, real)) continue;
        for (char **directory = directories; *directory; directory++)
            if (!strcmp(*directory, real)) return best;
    }
    return *directories;
}

static bool write_all(int fd, struct bytes data) {
    for (size_t done = 0; done < data.size;) {
        ssize_t n = write(fd, data.at + done, data.size - done);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

// In one step, with the owner and mode of what was there.
static bool replace(struct bytes data) {
    struct stat old;
    bool there = !stat(CACHE, &old);
    unlink(DRAFT);
    int fd = open(DRAFT, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) return false;
    bool good = write_all(fd, data) && !fchmod(fd, 0644) && (!there || !fchown(fd, old.st_uid, old.st_gid));
    good = !close(fd) && good && !rename(DRAFT, CACHE);
    if (!good) {
        int why = errno;
        unlink(DRAFT);
        errno = why;
    }
    return good;
}

int main(int argc, char **argv) {
    const char *only = NULL;
    if (argc > 2 && !strcmp(argv[1], "--only")) {
        only = argv[2];
        argc -= 2;
        argv += 2;
    }
    char **names = argv + 1;
    while (*names && strcmp(*names, "--")) names++;
    if (argc < 4 || names == argv + 1 || !*names || !names[1]) {
        fprintf(stderr, "usage: ldcache [--only POLICY] DIRECTORY... -- NAME...\n");
        return 2;
    }
    *names++ = NULL;
    if (!enter(only)) return only != NULL;
    struct stat status;
    struct bytes file = slurp(CACHE, MOST_BYTES);
    struct header none = {.magic = MAGIC, .byte_order = 2};
    struct parsed parsed = {(const char *)&none, sizeof none, sizeof none, none, NULL};
    if (file.size) {
        errno = 0;
        if (!parse(file, &parsed)) return say("the container's " CACHE " is no loader's cache, and stays as it is"), 0;
    } else if ((!lstat(CACHE, &status) && !(S_ISREG(status.st_mode) && !status.st_size)) || stat(LOADER, &status)) {
        return 0; // something else is there, or no loader that would read it
    }
    size_t count = 0;
    while (names[count]) count++;
    qsort(names, count, sizeof *names, descending);
    struct bytes merged = merge(&parsed, names, count, place(&parsed, argv + 1));
    errno = 0;
    if (!merged.size) return say("the container's " CACHE " has damaged extensions, and stays as it is"), 0;
    if (!replace(merged)) say("the container's " CACHE " cannot be written");
    return 0;
}
