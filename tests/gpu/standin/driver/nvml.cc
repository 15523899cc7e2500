// A stand-in for NVIDIA's management library (libnvidia-ml.so.1): the functions through which nvidia-ml-py asks about GPUs.
//
// It reports the GPUs of STANDIN_GPUS and STANDIN_MEMORY (../gpu.h), and besides:
//   STANDIN_USED    megabytes in use by other processes, such as "1:30000" on GPU 1; several are separated by commas
//   STANDIN_MIG     MIG instances, such as "0:2" on GPU 0
//   STANDIN_FALLEN  numbers of GPUs that do not answer, such as "2,3"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace {

enum Result { kSuccess = 0, kInvalidArgument = 2, kNotFound = 6, kGpuIsLost = 15 };

struct Memory {
  unsigned long long total, free, used;
};

// A GPU, or an instance of one.
struct Device {
  int gpu = -1, instance = -1;
};
constexpr int kMostGpus = 64, kMostInstances = 7;
Device devices[kMostGpus][kMostInstances + 1];

int64_t Number(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || !*text ? otherwise : std::atoll(text);
}

int Gpus() { return static_cast<int>(Number("STANDIN_GPUS", 1)); }

// The number that a variable such as "1:30000,2:500" has for a GPU. An entry without a colon is 1.
int64_t NumberOf(int gpu, const char* name) {
  const char* text = std::getenv(name);
  std::stringstream entries(text == nullptr ? "" : text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const size_t colon = entry.find(':');
    if (std::stoi(entry) == gpu) return colon == std::string::npos ? 1 : std::stoll(entry.substr(colon + 1));
  }
  return 0;
}

int Copy(const std::string& text, char* to, unsigned length) {
  std::snprintf(to, length, "%s", text.c_str());
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInitWithFlags(unsigned) { return kSuccess; }
int nvmlInit_v2() { return kSuccess; }
int nvmlShutdown() { return kSuccess; }

const char* nvmlErrorString(int result) {
  switch (result) {
    case kSuccess: return "Success";
    case kInvalidArgument: return "Invalid Argument";
    case kNotFound: return "Not Found";
    case kGpuIsLost: return "GPU is lost";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char* version, unsigned length) { return Copy("570.86.15", version, length); }

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 12080;
  return kSuccess;
}
int nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(Gpus());
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
  if (index >= static_cast<unsigned>(Gpus()) || index >= kMostGpus) return kInvalidArgument;
  if (NumberOf(static_cast<int>(index), "STANDIN_FALLEN")) return kGpuIsLost;
  *device = &devices[index][kMostInstances];
  **device = {static_cast<int>(index), -1};
  return kSuccess;
}

int nvmlDeviceGetMaxMigDeviceCount(Device* device, unsigned* count) {
  *count = NumberOf(device->gpu, "STANDIN_MIG") ? kMostInstances : 0;
  return kSuccess;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device* device, unsigned index, Device** instance) {
  if (index >= static_cast<unsigned>(NumberOf(device->gpu, "STANDIN_MIG"))) return kNotFound;
  *instance = &devices[device->gpu][index];
  **instance = {device->gpu, static_cast<int>(index)};
  return kSuccess;
}

int nvmlDeviceGetGpuInstanceId(Device* device, unsigned* id) {
  *id = static_cast<unsigned>(device->instance + 1);
  return kSuccess;
}

int nvmlDeviceGetComputeInstanceId(Device*, unsigned* id) {
  *id = 0;
  return kSuccess;
}

int nvmlDeviceGetCudaComputeCapability(Device*, int* major, int* minor) {
  *major = 8;
  *minor = 0;
  return kSuccess;
}

int nvmlDeviceGetName(Device* device, char* name, unsigned length) {
  return Copy(device->instance < 0 ? "Stand-in GPU" : "Stand-in GPU MIG 1g", name, length);
}

int nvmlDeviceGetUUID(Device* device, char* uuid, unsigned length) {
  char text[64];
  if (device->instance < 0) std::snprintf(text, sizeof(text), "GPU-%08d-0000-0000-0000-000000000000", device->gpu);
  else std::snprintf(text, sizeof(text), "MIG-%08d-%04d-0000-0000-000000000000", device->gpu, device->instance);
  return Copy(text, uuid, length);
}

int nvmlDeviceGetMemoryInfo(Device* device, Memory* memory) {
  memory->total = static_cast<unsigned long long>(Number("STANDIN_MEMORY", 2048)) << 20;
  if (device->instance >= 0) memory->total /= kMostInstances;
  memory->used = static_cast<unsigned long long>(NumberOf(device->gpu, "STANDIN_USED")) << 20;
  memory->free = memory->total - memory->used;
  return kSuccess;
}

}  // extern "C"
