/* A thread's own record of when it did not run: every pause of its loop over a threshold.
 *
 * The loop only reads CLOCK_MONOTONIC, which costs about 25 ns and no system call, so a pause is time in which the
 * thread was stopped, preempted or interrupted. With `pages` it also maps, touches and unmaps that many every
 * `interval_ns`, so that it waits whenever somebody else holds this process's memory map. ctypes releases the GIL.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Puts the calling thread on one CPU; 0 when that worked. */
int pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

/* Runs until `end_ns` and fills `pauses` with (begin, length) pairs; returns how many there were, kept or not.
 * `loops` is set to how often it went round. */
int64_t record(int64_t end_ns, int64_t threshold_ns, int64_t pages, int64_t interval_ns, int64_t *pauses,
               int64_t capacity, int64_t *loops) {
    int64_t count = 0, before = now_ns(), mapped = before;
    for (*loops = 0; before < end_ns; (*loops)++) {
        if (pages && before - mapped >= interval_ns) {
            mapped = before;
            char *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED)
                return -1;
            memset(memory, 1, pages * 4096);
            munmap(memory, pages * 4096);
        }
        int64_t after = now_ns();
        if (after - before > threshold_ns) {
            if (count < capacity) {
                pauses[2 * count] = before;
                pauses[2 * count + 1] = after - before;
            }
            count++;
            after = now_ns();
        }
        before = after;
    }
    return count;
}
