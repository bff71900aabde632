/* A made-up NVML: each function answers what the file $NVML_STUB says, with the C types of nvml.h.

   A line of the file: FUNCTION GPU FIRST SECOND CODE VALUE...  (arguments after the device; -1: any).
   What has no line is not supported. Handles are wider than 32 bits, as the real ones are.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef int nvmlReturn_t;
typedef int nvmlEnableState_t;
typedef int nvmlMemoryErrorType_t;
typedef int nvmlEccCounterType_t;
typedef int nvmlNvLinkErrorCounter_t;
typedef struct nvmlPciInfo_st {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

static const unsigned long long BASE = 0x7f5500000000ULL;
static nvmlDevice_t device_of(unsigned int gpu) { return (nvmlDevice_t)(BASE + 64 * gpu); }
static int gpu_of(nvmlDevice_t device) { return (int)(((unsigned long long)device - BASE) / 64); }

static nvmlReturn_t answer(const char *function, int gpu, int first, int second, unsigned long long v[4]) {
    char line[256], name[80];
    int g, a, b, code, found = 3;
    FILE *file = fopen(getenv("NVML_STUB"), "r");
    if (!file) return 999;
    while (fgets(line, sizeof line, file)) {
        unsigned long long w[4] = {0, 0, 0, 0};
        if (sscanf(line, "%79s %d %d %d %d %llu %llu %llu %llu", name, &g, &a, &b, &code,
                   &w[0], &w[1], &w[2], &w[3]) < 5) continue;
        if (strcmp(name, function) || (g != -1 && g != gpu) || (a != -1 && a != first) ||
            (b != -1 && b != second)) continue;
        found = code;
        memcpy(v, w, sizeof w);
    }
    fclose(file);
    return found;
}

nvmlReturn_t nvmlInit_v2(void) { unsigned long long v[4]; return answer("nvmlInit_v2", -1, -1, -1, v); }
nvmlReturn_t nvmlShutdown(void) { return 0; }
nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned int length) {
    snprintf(text, length, "580.159.04");
    return 0;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    unsigned long long v[4];
    nvmlReturn_t code = answer("nvmlDeviceGetCount_v2", -1, -1, -1, v);
    if (!code) *count = (unsigned int)v[0];
    return code;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    unsigned long long v[4];
    nvmlReturn_t code = answer("nvmlDeviceGetHandleByIndex_v2", (int)index, -1, -1, v);
    if (!code) *device = device_of(index);
    return code;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned int length) {
    snprintf(text, length, "NVIDIA H200");
    return gpu_of(device) < 0;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length) {
    snprintf(text, length, "GPU-%d", gpu_of(device));
    return 0;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *place) {
    memset(place, 0xff, sizeof *place);
    snprintf(place->busIdLegacy, sizeof place->busIdLegacy, "0000:%02X:00.0", 0x3b + gpu_of(device));
    snprintf(place->busId, sizeof place->busId, "00000000:%02X:00.0", 0x3b + gpu_of(device));
    return 0;
}

/* One value of a type, or several. */
#define ONE(function, type)                                                   \
    nvmlReturn_t function(nvmlDevice_t device, type *value) {                 \
        unsigned long long v[4];                                              \
        nvmlReturn_t code = answer(#function, gpu_of(device), -1, -1, v);     \
        if (!code) *value = (type)v[0];                                       \
        return code;                                                          \
    }
#ifndef OLD
ONE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long)
#endif
ONE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long)
ONE(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int)
ONE(nvmlDeviceGetCurrPcieLinkWidth, unsigned int)
ONE(nvmlDeviceGetMaxPcieLinkWidth, unsigned int)
ONE(nvmlDeviceGetEnforcedPowerLimit, unsigned int)
ONE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int)

typedef struct nvmlUtilization_st { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct nvmlMemory_st { unsigned long long total, free, used; } nvmlMemory_t;
ONE(nvmlDeviceGetPowerUsage, unsigned int)
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *busy) {
    unsigned long long v[4];
    nvmlReturn_t code = answer("nvmlDeviceGetUtilizationRates", gpu_of(device), -1, -1, v);
    if (!code) { busy->gpu = (unsigned int)v[0]; busy->memory = (unsigned int)v[1]; }
    return code;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    unsigned long long v[4];
    nvmlReturn_t code = answer("nvmlDeviceGetMemoryInfo", gpu_of(device), -1, -1, v);
    if (!code) { memory->total = v[0]; memory->free = v[1]; memory->used = v[2]; }
    return code;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *now, nvmlEnableState_t *next) {
    unsigned long long v[4];
    nvmlReturn_t code = answer("nvmlDeviceGetEccMode", gpu_of(device), -1, -1, v);
    if (!code) { *now = (nvmlEnableState_t)v[0]; *next = (nvmlEnableState_t)v[1]; }
    return code;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t counter, unsigned long long *count) {
    unsigned long long v[4];
    nvmlReturn_t code = answer("nvmlDeviceGetTotalEccErrors", gpu_of(device), type, counter, v);
    if (!code) *count = v[0];
    return code;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                       unsigned int *pending, unsigned int *failed) {
    unsigned long long v[4];
    nvmlReturn_t code = answer("nvmlDeviceGetRemappedRows", gpu_of(device), -1, -1, v);
    if (!code) {
        *corrected = (unsigned int)v[0]; *uncorrected = (unsigned int)v[1];
        *pending = (unsigned int)v[2]; *failed = (unsigned int)v[3];
    }
    return code;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active) {
    unsigned long long v[4];
    if (link >= 18) return 2;
    nvmlReturn_t code = answer("nvmlDeviceGetNvLinkState", gpu_of(device), (int)link, -1, v);
    if (!code) *active = (nvmlEnableState_t)v[0];
    return code;
}
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                             nvmlNvLinkErrorCounter_t counter, unsigned long long *count) {
    unsigned long long v[4];
    nvmlReturn_t code = answer("nvmlDeviceGetNvLinkErrorCounter", gpu_of(device), (int)link, counter, v);
    if (!code) *count = v[0];
    return code;
}
