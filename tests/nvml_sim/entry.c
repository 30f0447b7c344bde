/* What happens at every entry point: the lock, the count, the faults. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static device devices[GPUS_MAX][INSTANCES_MAX + 1];

/* One row of the file that NVML_SIM_COUNTS names. It is shared memory, so a killed process loses no count. */
typedef struct { char function[56]; int32_t gpu; uint32_t used; uint64_t calls; } count_row;
enum { COUNT_ROWS = 4096 };

void lock_world(void) { pthread_mutex_lock(&lock); }
void unlock_world(void) { pthread_mutex_unlock(&lock); }

const device *device_at(int index, int instance) {
    device *d = &devices[index][instance + 1];
    d->gpu = index, d->instance = instance;
    return d;
}

static count_row *open_counts(int *fd) {
    const char *path = getenv("NVML_SIM_COUNTS");
    if (!path || (*fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0) return NULL;
    if (ftruncate(*fd, COUNT_ROWS * sizeof(count_row)) < 0) return NULL;
    void *rows = mmap(NULL, COUNT_ROWS * sizeof(count_row), PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    return rows == MAP_FAILED ? NULL : rows;
}

static void count(const char *function, int index) {
    static count_row *rows;
    static int fd = -1, opened;
    if (!opened) opened = 1, rows = open_counts(&fd);
    if (!rows) return;
    unsigned hash = 5381 + (unsigned)index;
    for (const char *c = function; *c; c++) hash = hash * 33 + (unsigned char)*c;
    for (unsigned i = 0; i < COUNT_ROWS; i++) {
        count_row *row = &rows[(hash + i) % COUNT_ROWS];
        if (!row->used) {
            flock(fd, LOCK_EX);
            if (!row->used) {
                snprintf(row->function, sizeof row->function, "%s", function);
                row->gpu = index, row->used = 1;
            }
            flock(fd, LOCK_UN);
        }
        if (row->gpu == index && !strcmp(row->function, function)) {
            __atomic_fetch_add(&row->calls, 1, __ATOMIC_RELAXED);
            return;
        }
    }
}

static int matches(const fault *f, const char *function, int index) {
    size_t n = strlen(f->function);
    int name = f->function[n - 1] == '*' ? !strncmp(f->function, function, n - 1) : !strcmp(f->function, function);
    return name && (f->gpu == ALL || f->gpu == index);
}

static void sleep_unlocked(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    pthread_mutex_unlock(&lock);
    while (nanosleep(&left, &left) < 0 && errno == EINTR) {}
    pthread_mutex_lock(&lock);
}

unsigned claimed(const char *function, unsigned count) {
    for (int i = 0; i < world->claim_count; i++)
        if (!strcmp(world->claims[i].function, function)) return world->claims[i].count;
    return count;
}

/* What a library may do to the process that has loaded it. */
static void misbehave(const fault *f) {
    if (f->kind == FAULT_ABORT) abort();
    if (f->kind == FAULT_EXIT) exit((int)f->value);
    if (f->kind == FAULT_BLOCK) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, NULL);
    }
    if (f->kind == FAULT_GROW) {
        char *memory = malloc((size_t)f->value);
        if (memory) memset(memory, 1, (size_t)f->value);
    }
    if (f->kind == FAULT_PRINT)
        for (int i = 0; i < (int)f->value; i++) {
            printf("{\"next\": 1, \"samples\": [], \"printed by the library\": %d}\n", i);
            fprintf(stderr, "NVRM: a line of the library's, number %d\n", i);
            fflush(stdout);
        }
}

int enter(const char *function, const device *d) {
    int index = d ? d->gpu : NO_GPU, result = SUCCESS, waits = 0;
    double delay = 0;
    pthread_mutex_lock(&lock);
    refresh_scenario();
    count(function, index);
    for (int i = 0; i < world->fault_count; i++) {
        const fault *f = &world->faults[i];
        if (!matches(f, function, index)) continue;
        if (f->kind == FAULT_DELAY) delay = f->value;
        else if (f->kind == FAULT_ERROR) result = (int)f->value;
        else if (f->kind == FAULT_OK) result = SUCCESS, delay = 0;
        else if (f->kind == FAULT_SEGV) raise(SIGSEGV);
        else if (f->kind == FAULT_SPIN) for (;;) {}
        else if (f->kind == FAULT_WAIT) waits = 1;
        else if (f->kind != FAULT_HANG) misbehave(f);
        else for (pthread_mutex_unlock(&lock);;) pause();
    }
    if (delay > 0) sleep_unlocked(delay);
    for (const scenario *before = world; waits && world == before;) wait_a_little();
    return result;
}

void leave(int *entered) {
    (void)entered;
    pthread_mutex_unlock(&lock);
}

/* For the one call that waits: lets other threads in, then looks at the scenario again. */
void wait_a_little(void) {
    sleep_unlocked(0.25);
    refresh_scenario();
}
