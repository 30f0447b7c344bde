/* What reaches back in time: rings, counters (field values), GPM, processes. */
#include "sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef union { double real; unsigned word; uint64_t wide; } value;
typedef struct { uint64_t stamp; value value; } sample;
typedef struct {
    unsigned id, scope;
    int64_t stamp, latency;
    unsigned type;
    int result;
    value value;
} field;
enum { TYPE_DOUBLE = 0, TYPE_WORD = 1, TYPE_WIDE = 3 };

/* The driver's stamps count microseconds since boot or since 1970, depending on its version. */
static double stamp_origin(void) {
    static double origin;
    struct timespec wall;
    if (!world->epoch_stamps) return 0;
    clock_gettime(CLOCK_REALTIME, &wall);
    if (!origin) origin = floor((double)wall.tv_sec + (double)wall.tv_nsec * 1e-9 - now_seconds());
    return origin;
}

int nvmlDeviceGetSamples(const device *handle, unsigned kind, uint64_t last_seen, unsigned *type, unsigned *count,
                         sample *out) {
    ENTER_DEVICE(handle);
    if (!PROPERTY(ring) || PROPERTY(mig) > 0) return NOT_SUPPORTED;
    const wave *w = kind == 0 ? SIGNAL(power) : kind == 1 ? SIGNAL(utilization) : SIGNAL(memory_utilization);
    if (kind > 2) return NOT_SUPPORTED;
    if (PROPERTY(ring) == 2) return NOT_FOUND;
    *type = TYPE_WORD;
    if (!out) return *count = claimed(__func__, (unsigned)world->ring_entries), SUCCESS;
    if (world->exact_room && *count != (unsigned)world->ring_entries) return INVALID_ARGUMENT;
    double period = world->ring_period, window = kind == 0 ? period : PROPERTY(sensor_window);
    uint64_t newest = (uint64_t)(t / period), given = 0;
    for (uint64_t k = newest - (uint64_t)world->ring_entries + 1; k <= newest && given < *count; k++) {
        double end = (double)k * period;
        uint64_t stamp = (uint64_t)((end + stamp_origin()) * 1e6);
        if (stamp <= last_seen) continue;
        double mean = wave_mean(w, end - window, end);
        out[given].stamp = stamp;
        out[given++].value.wide = (unsigned)(kind == 0 ? 1000 * mean : mean + 0.5);
    }
    *count = claimed(__func__, (unsigned)given);
    return given ? SUCCESS : NOT_FOUND;
}

/* NVLink: totals up to Ampere, link by link from Hopper on. The first link carries all errors. */
static int read_link_field(const gpu *g, unsigned id, unsigned link, value *out) {
    int hopper = PROPERTY(capability_major) >= 9;
    double count = id == 163 || id == 38 ? PROPERTY(nvlink_crc) : id == 161 || id == 52 ? PROPERTY(nvlink_replays)
        : id == 162 || id == 59 ? PROPERTY(nvlink_recoveries) : 0;
    if (!PROPERTY(nvlinks) || (id != 91 && (id >= 161) != hopper) || (hopper && link >= PROPERTY(nvlinks)))
        return NOT_SUPPORTED;
    if (id == 91) out->wide = (uint64_t)PROPERTY(nvlinks);
    else if (id == 165) out->wide = link < PROPERTY(nvlinks_active);
    else out->wide = link ? 0 : (uint64_t)count;
    return SUCCESS;
}

static int read_field(const gpu *g, double t, unsigned id, unsigned link, value *out) {
    double nanoseconds = 1e9;
    switch (id) {
    case 186: out->wide = (uint64_t)(1000 * wave_at(SIGNAL(power), t)); return PROPERTY(has_instant_power) ? 0 : 3;
    case 185: out->wide = (uint64_t)(1000 * wave_mean(SIGNAL(power), t - 1, t)); return SUCCESS;
    case 83: out->wide = (uint64_t)(1000 * wave_integral(SIGNAL(power), t)); return PROPERTY(has_energy) ? 0 : 3;
    case 82: out->wide = (uint64_t)wave_at(SIGNAL(memory_temperature), t);
        return PROPERTY(has_memory_temperature) ? SUCCESS : NOT_SUPPORTED;
    case 197: out->wide = (uint64_t)wave_integral(SIGNAL(pcie_tx), t); return SUCCESS;
    case 198: out->wide = (uint64_t)wave_integral(SIGNAL(pcie_rx), t); return SUCCESS;
    case 74: out->wide = (uint64_t)(nanoseconds * wave_integral(SIGNAL(throttle_power), t)); return SUCCESS;
    case 76: out->wide = (uint64_t)(nanoseconds * wave_integral(SIGNAL(sync_boost), t)); return SUCCESS;
    case 269: out->wide = (uint64_t)(nanoseconds * wave_integral(SIGNAL(throttle_sw_thermal), t)); return SUCCESS;
    case 270: out->wide = (uint64_t)(nanoseconds * wave_integral(SIGNAL(throttle_hw_thermal), t)); return SUCCESS;
    case 271: out->wide = (uint64_t)(nanoseconds * wave_integral(SIGNAL(throttle_power_brake), t)); return SUCCESS;
    case 3: out->wide = (uint64_t)PROPERTY(ecc_corrected); return PROPERTY(has_ecc) ? 0 : 3;
    case 4: out->wide = (uint64_t)PROPERTY(ecc_uncorrected); return PROPERTY(has_ecc) ? 0 : 3;
    case 29: out->wide = (uint64_t)PROPERTY(retired_pages); return PROPERTY(has_ecc) ? 0 : 3;
    case 30: out->wide = 0; return PROPERTY(has_ecc) ? 0 : 3;
    case 38: case 45: case 52: case 59: case 91: case 161: case 162: case 163: case 165:
        return read_link_field(g, id, link, out);
    case 94: out->wide = (uint64_t)PROPERTY(pcie_replays); return SUCCESS;
    case 143: out->wide = (uint64_t)PROPERTY(remapped_rows); return PROPERTY(has_ecc) ? 0 : 3;
    case 144: out->wide = (uint64_t)PROPERTY(remap_pending); return PROPERTY(has_ecc) ? 0 : 3;
    case 145: out->wide = (uint64_t)PROPERTY(remap_failed); return PROPERTY(has_ecc) ? 0 : 3;
    case 189: out->wide = (uint64_t)(1000 * PROPERTY(power_limit_default)); return SUCCESS;
    case 190: out->wide = (uint64_t)(1000 * PROPERTY(power_limit)); return SUCCESS;
    case 230: out->wide = (uint64_t)PROPERTY(recovery_action); return SUCCESS;
    default: return NOT_SUPPORTED;
    }
}

int nvmlDeviceGetFieldValues(const device *handle, int count, field *values) {
    ENTER_DEVICE(handle);
    for (int i = 0; i < count; i++)
        if (world->fields_up_to && values[i].id > (unsigned)world->fields_up_to) return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        field *f = &values[i];
        f->value.wide = 0, f->type = TYPE_WIDE, f->latency = 0;
        f->stamp = (int64_t)((t + stamp_origin()) * 1e6);
        f->result = d->instance >= 0 ? NOT_SUPPORTED : read_field(g, t, f->id, f->scope, &f->value);
        for (int k = 0; k < world->field_count; k++) {
            const field_override *o = &world->fields[k];
            if (o->id != (int)f->id || (o->gpu != ALL && o->gpu != d->gpu)) continue;
            f->result = o->error, f->value.wide = o->value;
        }
        if (f->result) f->value.wide = 0;
    }
    return SUCCESS;
}

/* GPM: a sample keeps the integrals of its moment; a metric is the mean between two samples. */
enum { GPM_METRICS = 4 };
static const int gpm_ids[GPM_METRICS] = {2, 3, 5, 10};
typedef struct { double t, integral[GPM_METRICS]; } gpm_sample;
typedef struct { unsigned id; int result; double value; const char *names[3]; } gpm_metric;
typedef struct { unsigned version, count; gpm_sample *first, *second; gpm_metric metrics[]; } gpm_request;
typedef struct { unsigned version, supported; } gpm_support;

int nvmlGpmQueryDeviceSupport(const device *handle, gpm_support *out) {
    ENTER_DEVICE(handle);
    out->supported = PROPERTY(gpm) > 0;
    return SUCCESS;
}
int nvmlGpmSampleAlloc(gpm_sample **out) {
    ENTER(NULL);
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}
int nvmlGpmSampleFree(gpm_sample *sample) {
    ENTER(NULL);
    free(sample);
    return SUCCESS;
}
static int take_gpm(const gpu *g, double t, gpm_sample *out) {
    if (!PROPERTY(gpm)) return NOT_SUPPORTED;
    const wave *waves[GPM_METRICS] = {SIGNAL(sm_activity), SIGNAL(sm_occupancy), SIGNAL(tensor_activity),
                                      SIGNAL(dram_activity)};
    out->t = t;
    for (int i = 0; i < GPM_METRICS; i++) out->integral[i] = wave_integral(waves[i], t);
    return SUCCESS;
}
int nvmlGpmSampleGet(const device *handle, gpm_sample *out) {
    ENTER_DEVICE(handle);
    return PROPERTY(mig) > 0 ? NOT_SUPPORTED : take_gpm(g, t, out);
}
int nvmlGpmMigSampleGet(const device *handle, unsigned instance, gpm_sample *out) {
    ENTER_DEVICE(handle);
    return instance < 1 || instance > PROPERTY(mig) ? INVALID_ARGUMENT : take_gpm(g, t, out);
}
int nvmlGpmMetricsGet(gpm_request *request) {
    ENTER(NULL);
    double seconds = request->second->t - request->first->t;
    for (unsigned i = 0; i < request->count; i++) {
        gpm_metric *m = &request->metrics[i];
        m->result = NOT_SUPPORTED, m->value = 0;
        for (int k = 0; k < GPM_METRICS; k++) {
            if (gpm_ids[k] != (int)m->id) continue;
            m->result = seconds < 0.1 ? NO_DATA : SUCCESS;
            if (!m->result) m->value = (request->second->integral[k] - request->first->integral[k]) / seconds;
        }
    }
    return SUCCESS;
}

/* Process lists. A record is 24 bytes; early R535 drivers wrote 32, and programs must notice. */
typedef struct { unsigned pid; uint64_t memory; unsigned gpu_instance, compute_instance; uint64_t protected; } record;
typedef struct { unsigned pid; uint64_t stamp; unsigned sm, memory, encoder, decoder; } process_use;

static int is_on(const process *p, const device *d) {
    return p->gpu == d->gpu && (d->instance < 0 || p->instance == d->instance);
}
static int list_processes(const char *function, const device *handle, unsigned *count, char *out) {
    const device *d = handle;
    int entered __attribute__((cleanup(leave))) = enter(function, d);
    if (entered) return entered;
    if (!initialised) return UNINITIALIZED;
    if (!d || d->gpu >= world->gpu_count) return INVALID_ARGUMENT;
    const gpu *g = &world->gpus[d->gpu];
    unsigned room = *count, total = 0;
    if (!PROPERTY(has_processes)) return NOT_SUPPORTED;
    for (int i = 0; i < world->process_count; i++) total += (unsigned)is_on(&world->processes[i], d);
    *count = claimed(function, total);
    if (total > room) return INSUFFICIENT_SIZE;
    for (int i = 0; i < world->process_count; i++) {
        const process *p = &world->processes[i];
        if (!is_on(p, d)) continue;
        unsigned instance = p->instance < 0 ? ~0u : (unsigned)p->instance + 1;
        record r = {p->pid, p->memory, instance, p->instance < 0 ? ~0u : 0, 0};
        memcpy(out, &r, (size_t)world->record_bytes);
        out += world->record_bytes;
    }
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(const device *handle, unsigned *count, char *out) {
    return list_processes(__func__, handle, count, out);
}
static int no_processes(const char *function, const device *handle, unsigned *count) {
    int entered __attribute__((cleanup(leave))) = enter(function, handle);
    *count = 0;
    return entered;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(const device *handle, unsigned *count, char *out) {
    (void)out;
    return no_processes(__func__, handle, count);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(const device *handle, unsigned *count, char *out) {
    (void)out;
    return no_processes(__func__, handle, count);
}

int nvmlDeviceGetProcessUtilization(const device *handle, process_use *out, unsigned *count, uint64_t last_seen) {
    ENTER_DEVICE(handle);
    (void)last_seen; /* real drivers too return rows that are older than asked for */
    unsigned room = out ? *count : 0, total = 0;
    if (PROPERTY(mig) > 0) return NOT_SUPPORTED;
    for (int i = 0; i < world->process_count; i++) total += (unsigned)is_on(&world->processes[i], d);
    *count = claimed(__func__, total);
    if (!total) return NOT_FOUND;
    if (total > room) return INSUFFICIENT_SIZE;
    for (int i = 0; i < world->process_count; i++) {
        const process *p = &world->processes[i];
        if (!is_on(p, d)) continue;
        double age = p->stale ? 60 : 0;
        *out++ = (process_use){p->pid, (uint64_t)((t - age + stamp_origin()) * 1e6), p->sm, p->sm / 2, 0, 0};
    }
    return SUCCESS;
}
