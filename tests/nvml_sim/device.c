/* One GPU's plain answers: identity, sensors of this moment, limits. */
#include "sim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct { unsigned gpu, memory; } utilization;
typedef struct { uint64_t total, free, used; } memory_v1;
typedef struct { unsigned version; uint64_t total, reserved, free, used; } memory_v2;
typedef struct { unsigned version, sensor; int celsius; } temperature_v1;
typedef struct {
    char bus_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info;
typedef struct {
    unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
    uint64_t memory_megabytes;
} attributes;

#define WHOLE_GPU if (d->instance >= 0) return NOT_SUPPORTED
#define GETTER(function, type, condition, value)          \
    int function(const device *handle, type *out) {       \
        ENTER_DEVICE(handle);                             \
        if (!(condition)) return NOT_SUPPORTED;           \
        *out = (type)(value);                             \
        return SUCCESS;                                   \
    }
#define WHOLE (d->instance < 0)

int nvmlDeviceGetName(const device *handle, char *out, unsigned length) {
    ENTER_DEVICE(handle);
    if (d->instance < 0) snprintf(out, length, "%s", g->name);
    else snprintf(out, length, "%s MIG 1g.%dgb", g->name, (int)(PROPERTY(memory_total) / 8e9));
    return SUCCESS;
}
int nvmlDeviceGetUUID(const device *handle, char *out, unsigned length) {
    ENTER_DEVICE(handle);
    if (d->instance < 0) snprintf(out, length, "%s", g->uuid);
    else snprintf(out, length, "MIG-%s-%d", g->uuid + 4, d->instance);
    return SUCCESS;
}
int nvmlDeviceGetSerial(const device *handle, char *out, unsigned length) {
    ENTER_DEVICE(handle);
    snprintf(out, length, "%010d", d->gpu);
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(const device *handle, pci_info *out) {
    ENTER_DEVICE(handle);
    WHOLE_GPU;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", g->pci);
    snprintf(out->bus_legacy, sizeof out->bus_legacy, "%.12s", g->pci + 4);
    out->bus = (unsigned)d->gpu + 1, out->device_id = 0x233010de;
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(const device *handle, int *major, int *minor) {
    ENTER_DEVICE(handle);
    *major = (int)PROPERTY(capability_major), *minor = (int)PROPERTY(capability_minor);
    return SUCCESS;
}
int nvmlDeviceGetAttributes_v2(const device *handle, attributes *out) {
    ENTER_DEVICE(handle);
    if (WHOLE) return NOT_SUPPORTED;
    *out = (attributes){.multiprocessors = 16, .gpu_slices = 1, .compute_slices = 1,
                        .memory_megabytes = (uint64_t)(PROPERTY(memory_total) / 8 / 1048576)};
    return SUCCESS;
}

int nvmlDeviceGetDriverModel(const device *handle, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(handle);
    (void)current, (void)pending;
    return NOT_SUPPORTED; /* a Windows notion */
}
GETTER(nvmlDeviceGetIndex, unsigned, 1, WHOLE ? d->gpu : d->instance)
GETTER(nvmlDeviceGetMinorNumber, unsigned, WHOLE, d->gpu)
GETTER(nvmlDeviceGetBrand, unsigned, 1, 2)
GETTER(nvmlDeviceGetPersistenceMode, unsigned, WHOLE, 1)
GETTER(nvmlDeviceGetComputeMode, unsigned, 1, 0)
GETTER(nvmlDeviceGetDisplayMode, unsigned, WHOLE, 0)
GETTER(nvmlDeviceGetDisplayActive, unsigned, WHOLE, 0)
GETTER(nvmlDeviceGetPerformanceState, unsigned, WHOLE, PROPERTY(performance_state))
GETTER(nvmlDeviceGetPowerUsage, unsigned, WHOLE, 1000 * wave_mean(SIGNAL(power), t - 1, t))
GETTER(nvmlDeviceGetPowerManagementLimit, unsigned, WHOLE, 1000 * PROPERTY(power_limit))
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned, WHOLE, 1000 * PROPERTY(power_limit))
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, WHOLE, 1000 * PROPERTY(power_limit_default))
GETTER(nvmlDeviceGetTotalEnergyConsumption, uint64_t, WHOLE && PROPERTY(has_energy),
       1000 * wave_integral(SIGNAL(power), t))
GETTER(nvmlDeviceGetFanSpeed, unsigned, WHOLE && PROPERTY(has_fan), wave_at(SIGNAL(fan), t))
GETTER(nvmlDeviceGetNumFans, unsigned, WHOLE, PROPERTY(has_fan))
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, WHOLE, PROPERTY(pcie_generation))
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, WHOLE, PROPERTY(pcie_generation_max))
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, WHOLE, PROPERTY(pcie_width))
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, WHOLE, PROPERTY(pcie_width_max))
GETTER(nvmlDeviceGetPcieReplayCounter, unsigned, WHOLE, PROPERTY(pcie_replays))

static uint64_t reasons_of(const gpu *g, double t) {
    if (PROPERTY(reasons) >= 0) return (uint64_t)PROPERTY(reasons);
    return (wave_at(SIGNAL(utilization), t) <= 0 ? 0x1 : 0) | (wave_at(SIGNAL(throttle_power), t) > 0 ? 0x4 : 0)
        | (wave_at(SIGNAL(sync_boost), t) > 0 ? 0x10 : 0) | (wave_at(SIGNAL(throttle_sw_thermal), t) > 0 ? 0x20 : 0)
        | (wave_at(SIGNAL(throttle_hw_thermal), t) > 0 ? 0x48 : 0)
        | (wave_at(SIGNAL(throttle_power_brake), t) > 0 ? 0x88 : 0);
}
GETTER(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, WHOLE, reasons_of(g, t))
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, WHOLE, reasons_of(g, t))

int nvmlDeviceGetUtilizationRates(const device *handle, utilization *out) {
    ENTER_DEVICE(handle);
    if (PROPERTY(mig) > 0) return NOT_SUPPORTED;
    double end = floor(t / PROPERTY(sensor_window)) * PROPERTY(sensor_window);
    out->gpu = (unsigned)(wave_mean(SIGNAL(utilization), end - PROPERTY(sensor_window), end) + 0.5);
    out->memory = (unsigned)(wave_mean(SIGNAL(memory_utilization), end - PROPERTY(sensor_window), end) + 0.5);
    return SUCCESS;
}
static int no_codec(const device *handle, unsigned *value, unsigned *period, const char *function) {
    int entered __attribute__((cleanup(leave))) = enter(function, handle);
    *value = 0, *period = 166000;
    return entered;
}
int nvmlDeviceGetEncoderUtilization(const device *handle, unsigned *value, unsigned *period) {
    return no_codec(handle, value, period, __func__);
}
int nvmlDeviceGetDecoderUtilization(const device *handle, unsigned *value, unsigned *period) {
    return no_codec(handle, value, period, __func__);
}

static int memory_of(const device *d, const gpu *g, double t, memory_v2 *out) {
    if (PROPERTY(unified)) return NOT_SUPPORTED;
    double share = d->instance < 0 ? 1 : 1. / 8;
    out->total = (uint64_t)(PROPERTY(memory_total) * share);
    out->used = (uint64_t)(wave_at(SIGNAL(memory), t) * share);
    out->reserved = 0, out->free = out->total - out->used;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(const device *handle, memory_v1 *out) {
    ENTER_DEVICE(handle);
    memory_v2 memory;
    int result = memory_of(d, g, t, &memory);
    if (!result) *out = (memory_v1){memory.total, memory.free, memory.used};
    return result;
}
int nvmlDeviceGetMemoryInfo_v2(const device *handle, memory_v2 *out) {
    ENTER_DEVICE(handle);
    return memory_of(d, g, t, out);
}
int nvmlDeviceGetBAR1MemoryInfo(const device *handle, memory_v1 *out) {
    ENTER_DEVICE(handle);
    *out = (memory_v1){128ull << 30, 127ull << 30, 1ull << 30};
    return SUCCESS;
}

int nvmlDeviceGetTemperature(const device *handle, unsigned sensor, unsigned *out) {
    ENTER_DEVICE(handle);
    WHOLE_GPU;
    if (sensor) return INVALID_ARGUMENT;
    *out = (unsigned)wave_at(SIGNAL(temperature), t);
    return SUCCESS;
}
int nvmlDeviceGetTemperatureV(const device *handle, temperature_v1 *out) {
    ENTER_DEVICE(handle);
    WHOLE_GPU;
    out->celsius = (int)wave_at(SIGNAL(temperature), t);
    return SUCCESS;
}
int nvmlDeviceGetTemperatureThreshold(const device *handle, unsigned kind, unsigned *out) {
    ENTER_DEVICE(handle);
    *out = kind == 0 ? 95 : 88;
    return SUCCESS;
}

static int clock_of(const device *d, const gpu *g, double t, unsigned kind, unsigned *out) {
    WHOLE_GPU;
    if (kind > 3) return INVALID_ARGUMENT;
    *out = (unsigned)wave_at(kind == 2 ? SIGNAL(memory_clock) : SIGNAL(sm_clock), t);
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(const device *handle, unsigned kind, unsigned *out) {
    ENTER_DEVICE(handle);
    return clock_of(d, g, t, kind, out);
}
int nvmlDeviceGetClock(const device *handle, unsigned kind, unsigned id, unsigned *out) {
    ENTER_DEVICE(handle);
    (void)id;
    return clock_of(d, g, t, kind, out);
}
int nvmlDeviceGetMaxClockInfo(const device *handle, unsigned kind, unsigned *out) {
    ENTER_DEVICE(handle);
    WHOLE_GPU;
    *out = (unsigned)(kind == 2 ? PROPERTY(memory_clock_max) : PROPERTY(sm_clock_max));
    return SUCCESS;
}
int nvmlDeviceGetApplicationsClock(const device *handle, unsigned kind, unsigned *out) {
    ENTER_DEVICE(handle);
    WHOLE_GPU;
    if (!PROPERTY(application_clock)) return NOT_SUPPORTED;
    *out = (unsigned)(kind == 2 ? PROPERTY(memory_clock_max) : PROPERTY(application_clock));
    return SUCCESS;
}
int nvmlDeviceGetNvLinkState(const device *handle, unsigned link, unsigned *out) {
    ENTER_DEVICE(handle);
    WHOLE_GPU;
    if (link >= PROPERTY(nvlinks)) return INVALID_ARGUMENT;
    *out = link < PROPERTY(nvlinks_active);
    return SUCCESS;
}
int nvmlDeviceGetPowerManagementLimitConstraints(const device *handle, unsigned *low, unsigned *high) {
    ENTER_DEVICE(handle);
    WHOLE_GPU;
    *low = 200000, *high = (unsigned)(1000 * PROPERTY(power_limit_default));
    return SUCCESS;
}
int nvmlDeviceGetPcieThroughput(const device *handle, unsigned counter, unsigned *out) {
    ENTER_DEVICE(handle);
    WHOLE_GPU;
    *out = (unsigned)(wave_mean(counter ? SIGNAL(pcie_rx) : SIGNAL(pcie_tx), t - 0.02, t) / 1024);
    return SUCCESS;
}

int nvmlDeviceGetEccMode(const device *handle, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(handle);
    if (!PROPERTY(has_ecc)) return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(const device *handle, unsigned kind, unsigned counter, uint64_t *out) {
    ENTER_DEVICE(handle);
    (void)counter;
    if (!PROPERTY(has_ecc)) return NOT_SUPPORTED;
    *out = (uint64_t)(kind ? PROPERTY(ecc_uncorrected) : PROPERTY(ecc_corrected));
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(const device *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    ENTER_DEVICE(handle);
    if (!PROPERTY(has_ecc)) return NOT_SUPPORTED;
    *corrected = 0, *uncorrected = (unsigned)PROPERTY(remapped_rows);
    *pending = (unsigned)PROPERTY(remap_pending), *failed = (unsigned)PROPERTY(remap_failed);
    return SUCCESS;
}
