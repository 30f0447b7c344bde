/* The scenario file: parsing, signals in time, and the machine's defaults. */
#define _GNU_SOURCE
#include "sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

scenario *world;

#define AS_TEXT(name) #name,
static const char *const signal_names[] = {SIGNALS(AS_TEXT)};
static const char *const property_names[] = {PROPERTIES(AS_TEXT)};
static const char *const shape_names[] = {"constant", "square", "sine", "phases"};

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double phases_period(const wave *w) {
    double period = 0;
    for (int i = 0; i + 1 < w->count; i += 2) period += w->values[i];
    return period;
}

/* square: low high period duty [shift]; sine: mean amplitude period [shift]; phases: seconds value ... */
double wave_at(const wave *w, double t) {
    const double *v = w->values;
    if (w->shape == SQUARE) return fmod(t + v[4], v[2]) < v[2] * v[3] ? v[1] : v[0];
    if (w->shape == SINE) return v[0] + v[1] * sin(2 * M_PI * (t + v[3]) / v[2]);
    if (w->shape == PHASES) {
        double rest = fmod(t, phases_period(w));
        for (int i = 0; i + 1 < w->count; i += 2) {
            if (rest < v[i]) return v[i + 1];
            rest -= v[i];
        }
        return v[w->count - 1];
    }
    return v[0];
}

/* From time 0, without `offset`: whole periods, then the rest of the running one. */
static double integral_from_zero(const wave *w, double t) {
    const double *v = w->values;
    if (w->shape == SQUARE) {
        double s = t + v[4], on = v[2] * v[3], rest = fmod(s, v[2]);
        double high = floor(s / v[2]) * on + fmin(rest, on);
        return high * v[1] + (s - high) * v[0];
    }
    if (w->shape == SINE) {
        double turn = 2 * M_PI / v[2];
        return v[0] * t - v[1] / turn * cos(turn * (t + v[3]));
    }
    if (w->shape == PHASES) {
        double period = phases_period(w), whole = 0, sum = 0, rest = fmod(t, period);
        for (int i = 0; i + 1 < w->count; i += 2) whole += v[i] * v[i + 1];
        for (int i = 0; i + 1 < w->count; i += 2) {
            double part = fmin(fmax(rest, 0), v[i]);
            sum += part * v[i + 1];
            rest -= v[i];
        }
        return floor(t / period) * whole + sum;
    }
    return v[0] * t;
}

double wave_integral(const wave *w, double t) { return w->offset + integral_from_zero(w, t); }

double wave_mean(const wave *w, double from, double to) {
    return (integral_from_zero(w, to) - integral_from_zero(w, from)) / (to - from);
}

static int find(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], name)) return i;
    fprintf(stderr, "nvml_sim: unknown word '%s'\n", name);
    abort(); /* a scenario with a misspelt word would test nothing */
}

static void set_constant(gpu *g, int signal, double value) {
    g->signal[signal] = (wave){.shape = CONSTANT, .count = 1, .values = {value}};
}

/* An H100 SXM in the middle of a training run. */
static void set_defaults(scenario *s) {
    strcpy(s->driver, "580.95.05");
    s->cuda = 13000, s->ring_entries = 72, s->record_bytes = 24, s->ring_period = 0.139;
    for (int i = 0; i < GPUS_MAX; i++) {
        gpu *g = &s->gpus[i];
        strcpy(g->name, "NVIDIA H100 80GB HBM3");
        snprintf(g->uuid, TEXT, "GPU-5eed0000-0000-4000-8000-%012d", i);
        snprintf(g->pci, sizeof g->pci, "00000000:%02X:00.0", i + 1);
        PROPERTY(memory_total) = 80e9, PROPERTY(power_limit) = 700, PROPERTY(power_limit_default) = 700;
        PROPERTY(sm_clock_max) = 1980, PROPERTY(memory_clock_max) = 2619;
        PROPERTY(pcie_generation) = PROPERTY(pcie_generation_max) = 5;
        PROPERTY(pcie_width) = PROPERTY(pcie_width_max) = 16;
        PROPERTY(capability_major) = 9, PROPERTY(gpm) = 1, PROPERTY(has_ecc) = 1;
        PROPERTY(has_memory_temperature) = 1, PROPERTY(has_energy) = 1, PROPERTY(has_processes) = 1;
        PROPERTY(has_instant_power) = 1, PROPERTY(ring) = 1, PROPERTY(sensor_window) = 1. / 6;
        PROPERTY(reasons) = -1, PROPERTY(application_clock) = 1980;
        PROPERTY(nvlinks) = PROPERTY(nvlinks_active) = 18;
        set_constant(g, SIGNAL_utilization, 90), set_constant(g, SIGNAL_memory_utilization, 40);
        set_constant(g, SIGNAL_power, 500), set_constant(g, SIGNAL_memory, 40e9);
        set_constant(g, SIGNAL_temperature, 61), set_constant(g, SIGNAL_memory_temperature, 72);
        set_constant(g, SIGNAL_sm_clock, 1755), set_constant(g, SIGNAL_memory_clock, 2619);
        set_constant(g, SIGNAL_fan, 45), set_constant(g, SIGNAL_sm_activity, 80);
        set_constant(g, SIGNAL_sm_occupancy, 50), set_constant(g, SIGNAL_tensor_activity, 40);
        set_constant(g, SIGNAL_dram_activity, 35), set_constant(g, SIGNAL_pcie_rx, 1e9);
        set_constant(g, SIGNAL_pcie_tx, 1e8);
    }
}

static int gpu_of(const char *word) { return !strcmp(word, "*") ? ALL : !strcmp(word, "-") ? NO_GPU : atoi(word); }

static void set_property(gpu *g, const char *key, const char *value) {
    if (!strcmp(key, "name")) snprintf(g->name, TEXT, "%s", value);
    else if (!strcmp(key, "uuid")) snprintf(g->uuid, TEXT, "%s", value);
    else if (!strcmp(key, "pci")) snprintf(g->pci, sizeof g->pci, "%s", value);
    else g->property[find(property_names, PROPERTY_COUNT, key)] = atof(value);
}

static void parse_gpu_line(scenario *s, const char *kind, char *rest) {
    char who[16], key[TEXT];
    int used = 0;
    if (sscanf(rest, "%15s %95s %n", who, key, &used) < 2) return;
    wave w = {0};
    if (!strcmp(kind, "wave")) {
        char shape[16];
        int more = 0;
        sscanf(rest + used, "%15s%n", shape, &more);
        w.shape = find(shape_names, 4, shape);
        char *at = rest + used + more, *end;
        for (double v = strtod(at, &end); end != at && w.count < WAVE_VALUES; v = strtod(at, &end))
            w.values[w.count++] = v, at = end;
    }
    int only = gpu_of(who), signal = strcmp(kind, "wave") ? 0 : find(signal_names, SIGNAL_COUNT, key);
    for (int i = 0; i < GPUS_MAX; i++) {
        if (only != ALL && only != i) continue;
        if (!strcmp(kind, "wave")) s->gpus[i].signal[signal] = w;
        else set_property(&s->gpus[i], key, rest + used);
    }
}

static void parse_fault(scenario *s, const char *rest) {
    char who[16], kind[16];
    fault *f = &s->faults[s->fault_count];
    if (s->fault_count == FAULTS_MAX || sscanf(rest, "%95s %15s %15s %lf", f->function, who, kind, &f->value) < 3)
        return;
    static const char *const kinds[] = {"ok", "error", "hang", "segv", "delay", "abort", "exit", "print", "block",
                                        "grow", "spin", "wait"};
    f->kind = find(kinds, 12, kind), f->gpu = gpu_of(who);
    s->fault_count++;
}

static void parse_field(scenario *s, const char *rest) {
    char who[16], value[32];
    field_override *f = &s->fields[s->field_count];
    if (s->field_count == FIELDS_MAX || sscanf(rest, "%15s %d %31s %d", who, &f->id, value, &f->error) < 3) return;
    f->gpu = gpu_of(who), f->value = strtoull(value, NULL, 10);
    s->field_count++;
}

static void parse_process(scenario *s, const char *rest) {
    char who[16], stale[8] = "";
    process *p = &s->processes[s->process_count];
    p->instance = -1;
    if (s->process_count == PROCESSES_MAX) return;
    if (sscanf(rest, "%15s %u %lu %u %d %7s", who, &p->pid, &p->memory, &p->sm, &p->instance, stale) < 4) return;
    p->gpu = gpu_of(who), p->stale = !strcmp(stale, "stale");
    s->process_count++;
}

static void parse_line(scenario *s, char *line) {
    char kind[TEXT], text[TEXT] = "";
    int used = 0;
    line[strcspn(line, "#\n")] = 0;
    if (sscanf(line, "%95s %n", kind, &used) < 1) return;
    char *rest = line + used;
    for (size_t n = strlen(rest); n && rest[n - 1] == ' ';) rest[--n] = 0;
    sscanf(rest, "%95s", text);
    if (!strcmp(kind, "gpu") || !strcmp(kind, "wave")) parse_gpu_line(s, kind, rest);
    else if (!strcmp(kind, "fault")) parse_fault(s, rest);
    else if (!strcmp(kind, "field")) parse_field(s, rest);
    else if (!strcmp(kind, "process")) parse_process(s, rest);
    else if (!strcmp(kind, "driver")) strcpy(s->driver, text);
    else if (!strcmp(kind, "cuda")) s->cuda = atoi(text);
    else if (!strcmp(kind, "gpus")) s->gpu_count = atoi(text) > GPUS_MAX ? GPUS_MAX : atoi(text);
    else if (!strcmp(kind, "ring_period")) s->ring_period = atof(text);
    else if (!strcmp(kind, "ring_entries")) s->ring_entries = atoi(text);
    else if (!strcmp(kind, "stamps")) s->epoch_stamps = !strcmp(text, "epoch");
    else if (!strcmp(kind, "fields_up_to")) s->fields_up_to = atoi(text);
    else if (!strcmp(kind, "exact_room")) s->exact_room = atoi(text);
    else if (!strcmp(kind, "record_bytes")) s->record_bytes = atoi(text);
    else if (!strcmp(kind, "claim") && s->claim_count < CLAIMS_MAX) {
        claim *c = &s->claims[s->claim_count++];
        sscanf(rest, "%95s %u", c->function, &c->count);
    } else if (!strcmp(kind, "event") && s->event_count < EVENTS_MAX) {
        event *e = &s->events[s->event_count++];
        sscanf(rest, "%ld %d %lu", &e->sequence, &e->gpu, &e->xid);
    } else find(NULL, 0, kind);
}

/* Counters go on from where they stood: a changed wave counts from now, it does not rewrite the past. */
static void keep_counters(const scenario *before, scenario *after) {
    double t = now_seconds();
    for (int i = 0; i < GPUS_MAX; i++)
        for (int k = 0; k < SIGNAL_COUNT; k++) {
            const wave *old = &before->gpus[i].signal[k];
            wave *new = &after->gpus[i].signal[k];
            new->offset = wave_integral(old, t) - integral_from_zero(new, t);
        }
}

void refresh_scenario(void) {
    static struct stat seen;
    struct stat now;
    const char *path = getenv("NVML_SIM_SCENARIO");
    if (world && (!path || stat(path, &now) < 0)) return;
    if (world && now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec
        && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    scenario *s = calloc(1, sizeof *s);
    set_defaults(s);
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    if (file) {
        fstat(fileno(file), &seen);
        while (fgets(line, sizeof line, file)) parse_line(s, line);
        fclose(file);
    }
    if (world) keep_counters(world, s);
    free(world);
    world = s;
}
