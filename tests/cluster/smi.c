// SPDX-License-Identifier: Apache-2.0
// nvidia-smi: as much of NVIDIA's as pods of tutorials call, -L and --query-gpu=name,memory.total, of the GPUs whose device nodes are there.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct memory {
    unsigned long long total, free, used;
};

int main(int count, char **words) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
    unsigned gpus, minor;
    int shown = 0;
    if (library == NULL) return fprintf(stderr, "nvidia-smi: %s\n", dlerror()), 1;
#define FIND(name) int (*name)() = (int (*)())dlsym(library, #name)
    FIND(nvmlInit_v2);
    FIND(nvmlDeviceGetCount_v2);
    FIND(nvmlDeviceGetHandleByIndex_v2);
    FIND(nvmlDeviceGetMinorNumber);
    FIND(nvmlDeviceGetName);
    FIND(nvmlDeviceGetUUID);
    FIND(nvmlDeviceGetMemoryInfo);
    if (nvmlInit_v2() != 0 || nvmlDeviceGetCount_v2(&gpus) != 0) return fprintf(stderr, "nvidia-smi: no driver\n"), 1;
    for (unsigned index = 0; index < gpus; index++) {
        char name[96] = "", uuid[96] = "", node[32];
        struct memory memory = {0};
        if (nvmlDeviceGetHandleByIndex_v2(index, &device) != 0 || nvmlDeviceGetMinorNumber(device, &minor) != 0)
            continue;
        snprintf(node, sizeof node, "/dev/nvidia%u", minor);
        if (access(node, F_OK) != 0) continue;
        nvmlDeviceGetName(device, name, sizeof name);
        nvmlDeviceGetUUID(device, uuid, sizeof uuid);
        nvmlDeviceGetMemoryInfo(device, &memory);
        if (count > 1 && strcmp(words[1], "-L") == 0) printf("GPU %d: %s (UUID: %s)\n", shown++, name, uuid);
        else printf("%s, %llu MiB\n", name, memory.total >> 20);
    }
    return 0;
}
