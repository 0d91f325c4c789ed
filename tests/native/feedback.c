// SPDX-License-Identifier: Apache-2.0
//
// feedback SECONDS (POLICY PID)...: what the node's daemon does, in the virtual time of a test: once a second it tells each container what GPU 0 did for its
// process and for the others.
#include <fcntl.h>
#include <stdlib.h>

#include "abi.h"
#include "card.h"

enum { MOST = 8 };

static void put(int file, size_t at, const void *bytes, size_t size) {
    if (pwrite(file, bytes, size, (off_t)at) != (ssize_t)size) exit(1);
}

static void tell(const char *path, uint32_t busy, uint32_t others) {
    struct ka_policy policy;
    int file = open(path, O_RDWR);
    if (file < 0 || pread(file, &policy, sizeof policy, 0) != sizeof policy) exit(1);
    policy.generation++;
    put(file, offsetof(struct ka_policy, generation), &policy.generation, 4);
    policy.feedback_at_ns = (uint64_t)monotonic_ns();
    policy.device[0].feedback_busy_permille = busy;
    policy.device[0].feedback_others_permille = others;
    put(file, offsetof(struct ka_policy, feedback_at_ns), &policy.feedback_at_ns, 8);
    put(file, offsetof(struct ka_policy, device), &policy.device[0], sizeof policy.device[0]);
    policy.generation++;
    put(file, offsetof(struct ka_policy, generation), &policy.generation, 4);
    close(file);
}

int main(int count, char **words) {
    int64_t before[MOST] = {0}, then = monotonic_ns();
    struct card *card = &map_cards(getenv("GPUSIM_FILE"))->cards[0];
    const int tenants = (count - 2) / 2;
    for (int second = 0; second < atoi(words[1]); second++) {
        nanosleep(&(struct timespec){1, 0}, NULL);
        uint32_t busy[MOST] = {0}, sum = 0;
        lock_card(card);
        int64_t now = monotonic_ns();
        advance_card(card, now);
        for (int i = 0; i < tenants; i++)
            for (int place = 0; place < card->highest; place++)
                if (card->tenants[place].pid == atoi(words[3 + 2 * i])) {
                    busy[i] = (uint32_t)((card->tenants[place].progress - before[i]) * 1000 / (now - then));
                    before[i] = card->tenants[place].progress;
                    sum += busy[i];
                }
        unlock_card(card);
        then = now;
        for (int i = 0; i < tenants; i++) tell(words[2 + 2 * i], busy[i], sum - busy[i]);
    }
    return 0;
}
