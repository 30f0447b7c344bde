/* The library as a whole: init, versions, handles, MIG, events. */
#include "sim.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

int initialised;

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(NULL);
    initialised++;
    return SUCCESS;
}
int nvmlInit_v2(void) {
    ENTER(NULL);
    initialised++;
    return SUCCESS;
}
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlShutdown(void) {
    ENTER(NULL);
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    static const char *const words[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "The operating system has blocked the request", "Driver/library version mismatch",
        "In use by another client", "Insufficient Memory", "No data", "vGPU ECC not supported",
        "Insufficient Resources", "Frequency not supported", "Argument version mismatch", "Deprecated",
        "Not Ready", "GPU Not Found", "Invalid State", "Reset type not supported"};
    return code >= 0 && code <= 30 ? words[code] : "Unknown Error";
}

static int give_text(char *out, unsigned length, const char *text) {
    if (strlen(text) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    ENTER(NULL);
    return initialised ? give_text(out, length, world->driver) : UNINITIALIZED;
}
int nvmlSystemGetNVMLVersion(char *out, unsigned length) {
    ENTER(NULL);
    char text[TEXT + 4];
    snprintf(text, sizeof text, "13.%s", world->driver);
    return give_text(out, length, text);
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER(NULL);
    *out = world->cuda;
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

int nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER(NULL);
    if (!initialised) return UNINITIALIZED;
    *out = claimed(__func__, (unsigned)world->gpu_count);
    return SUCCESS;
}

static int find_device(const char *function, int index, const device **out) {
    const device *d = index >= 0 && index < GPUS_MAX ? device_at(index, -1) : NULL;
    int entered __attribute__((cleanup(leave))) = enter(function, d);
    if (entered) return entered;
    if (!initialised) return UNINITIALIZED;
    if (!d || index >= world->gpu_count) return INVALID_ARGUMENT;
    *out = d;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, const device **out) {
    return find_device(__func__, index < GPUS_MAX ? (int)index : -1, out);
}
static int index_of(const char *text, int by_uuid) {
    int found = -1;
    lock_world();
    refresh_scenario();
    for (int i = 0; i < world->gpu_count && found < 0; i++)
        if (strstr(by_uuid ? world->gpus[i].uuid : world->gpus[i].pci, text)) found = i;
    unlock_world();
    return found;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, const device **out) {
    return find_device(__func__, index_of(uuid, 1), out);
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, const device **out) {
    return find_device(__func__, index_of(pci, 0), out);
}

int nvmlDeviceGetMigMode(const device *handle, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(handle);
    if (PROPERTY(capability_major) < 8) return NOT_SUPPORTED;
    *current = *pending = PROPERTY(mig) > 0;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(const device *handle, unsigned *out) {
    ENTER_DEVICE(handle);
    *out = claimed(__func__, PROPERTY(capability_major) < 8 ? 0 : INSTANCES_MAX);
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(const device *handle, unsigned index, const device **out) {
    ENTER_DEVICE(handle);
    if (index >= PROPERTY(mig)) return NOT_FOUND;
    *out = device_at(d->gpu, (int)index);
    return SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const device *handle, const device **out) {
    ENTER_DEVICE(handle);
    *out = device_at(d->gpu, -1);
    return SUCCESS;
}
int nvmlDeviceIsMigDeviceHandle(const device *handle, unsigned *out) {
    ENTER_DEVICE(handle);
    *out = d->instance >= 0;
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(const device *handle, unsigned *out) {
    ENTER_DEVICE(handle);
    if (d->instance < 0) return NOT_SUPPORTED;
    *out = (unsigned)d->instance + 1;
    return SUCCESS;
}
int nvmlDeviceGetComputeInstanceId(const device *handle, unsigned *out) {
    ENTER_DEVICE(handle);
    if (d->instance < 0) return NOT_SUPPORTED;
    *out = 0;
    return SUCCESS;
}

/* Events: a set remembers the last sequence number it gave out, so each line of the scenario comes once. */
typedef struct { long seen; uint64_t gpus; } event_set;
typedef struct { const device *device; uint64_t type, data; unsigned gpu_instance, compute_instance; } event_data;

int nvmlEventSetCreate(event_set **out) {
    ENTER(NULL);
    event_set *set = calloc(1, sizeof *set);
    for (int i = 0; i < world->event_count; i++)
        if (world->events[i].sequence > set->seen) set->seen = world->events[i].sequence;
    *out = set;
    return SUCCESS;
}
int nvmlEventSetFree(event_set *set) {
    ENTER(NULL);
    free(set);
    return SUCCESS;
}
int nvmlDeviceGetSupportedEventTypes(const device *handle, uint64_t *out) {
    ENTER_DEVICE(handle);
    *out = 0x1f;
    return SUCCESS;
}
int nvmlDeviceRegisterEvents(const device *handle, uint64_t types, event_set *set) {
    ENTER_DEVICE(handle);
    (void)types;
    set->gpus |= 1ull << d->gpu;
    return SUCCESS;
}
int nvmlEventSetWait_v2(event_set *set, event_data *out, unsigned timeout_ms) {
    ENTER(NULL);
    for (double end = now_seconds() + timeout_ms * 1e-3; now_seconds() < end; wait_a_little())
        for (int i = 0; i < world->event_count; i++) {
            const event *e = &world->events[i];
            if (e->sequence <= set->seen || !(set->gpus >> e->gpu & 1)) continue;
            set->seen = e->sequence;
            *out = (event_data){device_at(e->gpu, -1), 8, e->xid, ~0u, ~0u};
            return SUCCESS;
        }
    return TIMEOUT;
}
