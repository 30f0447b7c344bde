/* A simulated NVIDIA driver library: what the parts share.
 *
 * The scenario file (README.md) is looked at on every call and read again when it has changed, so that a
 * test can lose a GPU or hang a call while a program runs. All signals are functions of CLOCK_MONOTONIC, so
 * every process sees the same machine; averages and counters are exact integrals of them, not samples.
 */
#ifndef NVML_SIM_H
#define NVML_SIM_H

#include <pthread.h>
#include <stdint.h>

enum { GPUS_MAX = 64, INSTANCES_MAX = 7, WAVE_VALUES = 32, FAULTS_MAX = 256, FIELDS_MAX = 256,
       PROCESSES_MAX = 256, EVENTS_MAX = 64, CLAIMS_MAX = 8, TEXT = 96 };

/* NVML return codes that the simulation itself gives; any other comes from a scenario's fault lines. */
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, NO_DATA = 21 };

#define SIGNALS(X) X(utilization) X(memory_utilization) X(power) X(memory) X(temperature) \
    X(memory_temperature) X(sm_clock) X(memory_clock) X(fan) X(throttle_power) X(throttle_sw_thermal) \
    X(throttle_hw_thermal) X(throttle_power_brake) X(sync_boost) X(pcie_tx) X(pcie_rx) X(sm_activity) \
    X(sm_occupancy) X(tensor_activity) X(dram_activity)

#define PROPERTIES(X) X(memory_total) X(power_limit) X(power_limit_default) X(sm_clock_max) \
    X(memory_clock_max) X(pcie_generation) X(pcie_generation_max) X(pcie_width) X(pcie_width_max) \
    X(performance_state) X(capability_major) X(capability_minor) X(gpm) X(has_fan) X(has_ecc) \
    X(has_memory_temperature) X(has_energy) X(has_instant_power) X(has_processes) X(ring) X(unified) \
    X(sensor_window) X(reasons) X(mig) X(ecc_corrected) X(ecc_uncorrected) X(remapped_rows) \
    X(remap_pending) X(remap_failed) X(retired_pages) X(recovery_action) X(pcie_replays) \
    X(application_clock) X(nvlinks) X(nvlinks_active) X(nvlink_crc) X(nvlink_replays) X(nvlink_recoveries)

#define AS_SIGNAL(name) SIGNAL_##name,
#define AS_PROPERTY(name) PROPERTY_##name,
enum { SIGNALS(AS_SIGNAL) SIGNAL_COUNT };
enum { PROPERTIES(AS_PROPERTY) PROPERTY_COUNT };
enum { CONSTANT, SQUARE, SINE, PHASES };
enum { FAULT_OK, FAULT_ERROR, FAULT_HANG, FAULT_SEGV, FAULT_DELAY, FAULT_ABORT, FAULT_EXIT, FAULT_PRINT, FAULT_BLOCK,
       FAULT_GROW, FAULT_SPIN, FAULT_WAIT };
enum { ALL = -1, NO_GPU = -2 };

typedef struct { int shape, count; double values[WAVE_VALUES], offset; } wave;
typedef struct {
    char name[TEXT], uuid[TEXT], pci[32];
    double property[PROPERTY_COUNT];
    wave signal[SIGNAL_COUNT];
} gpu;
typedef struct { char function[TEXT]; int gpu, kind; double value; } fault;
typedef struct { char function[TEXT]; unsigned count; } claim;
typedef struct { int gpu, id, error; uint64_t value; } field_override;
typedef struct { int gpu, instance, stale; unsigned pid, sm; uint64_t memory; } process;
typedef struct { long sequence; int gpu; uint64_t xid; } event;
typedef struct {
    char driver[TEXT];
    int cuda, gpu_count, ring_entries, epoch_stamps, record_bytes;
    int fields_up_to, exact_room, fault_count, field_count, process_count, event_count, claim_count;
    double ring_period;
    gpu gpus[GPUS_MAX];
    fault faults[FAULTS_MAX];
    claim claims[CLAIMS_MAX];
    field_override fields[FIELDS_MAX];
    process processes[PROCESSES_MAX];
    event events[EVENTS_MAX];
} scenario;
typedef struct { int gpu, instance; } device; /* instance is -1 for a whole GPU */

extern scenario *world;
extern int initialised;

double now_seconds(void);
double wave_at(const wave *w, double t);
double wave_integral(const wave *w, double t);
double wave_mean(const wave *w, double from, double to);
void refresh_scenario(void);
int enter(const char *function, const device *d);
void leave(int *entered);
unsigned claimed(const char *function, unsigned count);
void lock_world(void);
void unlock_world(void);
void wait_a_little(void);
const device *device_at(int index, int instance);

/* Every entry point: counts the call, applies the scenario's faults and delays, holds the lock until it
 * returns. A device that is no GPU of ours is an invalid argument, as in the real library. */
#define ENTER(handle)                                                                   \
    const device *d = (handle);                                                         \
    int entered __attribute__((cleanup(leave))) = enter(__func__, d);                   \
    if (entered) return entered
#define ENTER_DEVICE(handle)                                                            \
    ENTER(handle);                                                                      \
    if (!initialised) return UNINITIALIZED;                                             \
    if (!d || d->gpu >= world->gpu_count) return INVALID_ARGUMENT;                      \
    gpu *g = &world->gpus[d->gpu];                                                      \
    double t = now_seconds();                                                           \
    (void)g, (void)t
#define PROPERTY(key) (g->property[PROPERTY_##key])
#define SIGNAL(key) (&g->signal[SIGNAL_##key])

#endif
