// SPDX-License-Identifier: Apache-2.0
// take MIB...: the CUDA result of allocating so much memory of GPU 0, each after the other and keeping none; then how much there is to see.
// What is written with a plus (``6144+``) is kept, and the program stays.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    size_t pointer, free, total;
    int kept = 0;
    if (library == NULL) return fprintf(stderr, "take: %s\n", dlerror()), 1;
#define FIND(name) int (*name)() = (int (*)())dlsym(library, #name)
    FIND(cuInit);
    FIND(cuCtxCreate_v2);
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    FIND(cuMemGetInfo_v2);
    int code = cuInit(0);
    if (code == 0) code = cuCtxCreate_v2(&context, 0, 0);
    if (code != 0) return fprintf(stderr, "take: CUDA error %d\n", code), 1;
    for (int i = 1; i < count; i++) {
        printf("%d ", code = cuMemAlloc_v2(&pointer, (size_t)atoi(words[i]) << 20));
        if (code == 0 && strchr(words[i], '+')) kept++;
        else if (code == 0) cuMemFree_v2(pointer);
    }
    cuMemGetInfo_v2(&free, &total);
    printf("%zu\n", total >> 20);
    fflush(stdout);
    if (kept > 0) pause();
    return 0;
}
