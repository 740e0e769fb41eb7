#include <stdlib.h>
#include <string.h>
typedef unsigned int u32; typedef unsigned long long u64;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
/* As NVML numbers them: the other way round than torch does. */
static const char *uuids[] = {"GPU-bbbbbbbb-0000-0000-0000-000000000000", "GPU-aaaaaaaa-0000-0000-0000-000000000000"};
static int gpus[2] = {0, 1}, reads = 0;
static int number(void *gpu) { return *(int *)gpu; }
static int setting(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }
int nvmlInitWithFlags(u32 flags) { return setting("FAKE_NO_DRIVER", 0) ? DRIVER_NOT_LOADED : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Other"; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) {
  for (int i = 0; i < 2; i++) if (!strcmp(uuid, uuids[i])) { *gpu = &gpus[i]; return OK; }
  return NOT_FOUND;
}
int nvmlDeviceGetName(void *gpu, char *name, u32 size) { strncpy(name, number(gpu) ? "Fake A" : "Fake B", size); return OK; }
int nvmlDeviceGetUtilizationRates(void *gpu, u32 *rates) {
  if (++reads > setting("FAKE_LOST_AFTER", 1 << 30)) return GPU_IS_LOST;
  rates[0] = setting("FAKE_UTIL", 10 + number(gpu)); rates[1] = 5; return OK;
}
int nvmlDeviceGetMemoryInfo(void *gpu, u64 *memory) { memory[0] = 80ull << 30; memory[1] = 79ull << 30; memory[2] = 1ull << 30; return OK; }
int nvmlDeviceGetTemperature(void *gpu, u32 sensor, u32 *value) { *value = 60 + number(gpu); return OK; }
int nvmlDeviceGetPowerUsage(void *gpu, u32 *milliwatts) { return NOT_SUPPORTED; }
int nvmlDeviceGetClockInfo(void *gpu, u32 kind, u32 *mhz) { *mhz = kind == 1 ? 1980 : 2619; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, u64 *reasons) { *reasons = 0x40; return OK; }
