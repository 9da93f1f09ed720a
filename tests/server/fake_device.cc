// The least that a worker needs of a device library: two devices, no memory, no execution. So that poold's
// own tests depend on no real device. FAKE_DEVICE makes it fail: "init", "none" (no devices), "hang",
// "crash", "novmm", "high", "large" (GPUs of 141 GiB), and "flag:FILE" (cuInit fails as long as FILE exists). "hostile:HOW" makes it a client's takeover of
// its worker: at SIGUSR1 it speaks to poold on the worker's control socket. "cache": at SIGUSR1 it uses the driver's cache as NVIDIA's driver
// does, by the variables as they were in cuInit, tries to reach other tenants' folders, and writes what came of it to poold's log.
#include <cuda.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "server/handover.h"

#define FAKE extern "C" __attribute__((visibility("default"))) CUresult

namespace {

std::string mode() {
  const char* value = std::getenv("FAKE_DEVICE");
  return value != nullptr ? value : "";
}
int contexts = 0;

void speak_to_poold(int) {
  using namespace gpupool::server;
  ControlHeader header;
  int file = -1;
  const std::string how = mode();
  if (how == "hostile:garbage") {
    ::send(kControlDescriptor, "?", 1, MSG_NOSIGNAL);
    return;
  }
  if (how == "hostile:kind") header.kind = static_cast<ControlKind>(12345);
  if (how == "hostile:ready") header.kind = ControlKind::ready;
  if (how == "hostile:damaged") {
    header.kind = ControlKind::image_damaged;
    header.image_name.fill(1);
  }
  if (how == "hostile:deposit") {
    header.kind = ControlKind::image_deposit;
    header.image_bytes = 100;
    file = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  }
  if (how == "hostile:dump") header.kind = ControlKind::dump;
  if (how == "hostile:peers") {  // more connections at once than any client needs
    header.kind = ControlKind::peer_wanted;
    header.peer.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
    header.peer.port = 1;
    for (int more = 0; more < 100; ++more) (void)send_control(kControlDescriptor, header, "", -1);
  }
  (void)send_control(kControlDescriptor, header, "", file);
}

std::string cache_path, cache_bytes;  // as of cuInit

int entries_of(const std::string& path) {
  DIR* const folder = ::opendir(path.c_str());
  if (folder == nullptr) return -1;
  int count = 0;
  while (const dirent* const entry = ::readdir(folder)) count += entry->d_name[0] != '.';
  ::closedir(folder);
  return count;
}

void use_cache(int) {
  const int before = entries_of(cache_path);
  const std::string folder = cache_path + "/" + std::to_string(::getpid());
  const bool made = ::mkdir(folder.c_str(), 0777) == 0 && ::mkdir((folder + "/a").c_str(), 0777) == 0;
  const int file = ::open((folder + "/a/entry").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const bool wrote = file >= 0 && ::write(file, "x", 1) == 1;
  const bool others = entries_of(cache_path + "/..") >= 0 || ::chmod((cache_path + "/..").c_str(), 0777) == 0;
  ::dprintf(gpupool::server::kLogDescriptor, "fake_cache bytes=%s before=%d made=%d wrote=%d others=%d.\n", cache_bytes.c_str(), before, made, wrote, others);
}

}  // namespace

FAKE cuInit(unsigned flags) {
  const std::string how = mode();
  if (how == "init") return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  if (how == "crash") std::abort();
  while (how == "hang") ::pause();
  if (how == "cache") {
    const char* const path = std::getenv("CUDA_CACHE_PATH");
    const char* const bytes = std::getenv("CUDA_CACHE_MAXSIZE");
    cache_path = path != nullptr ? path : "/none";
    cache_bytes = bytes != nullptr ? bytes : "none";
    ::signal(SIGUSR1, &use_cache);
  }
  if (how.starts_with("hostile:")) ::signal(SIGUSR1, &speak_to_poold);
  if (how.starts_with("flag:") && ::access(how.c_str() + 5, F_OK) == 0) return CUDA_ERROR_SYSTEM_NOT_READY;
  return CUDA_SUCCESS;
}
FAKE cuGetErrorName(CUresult error, const char** name) {
  if (error != CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) return CUDA_ERROR_INVALID_VALUE;
  *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
  return CUDA_SUCCESS;
}
FAKE cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetCount(int* count) {
  *count = mode() == "none" ? 0 : 2;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetName(char* name, int length, CUdevice device) {
  std::snprintf(name, static_cast<size_t>(length), "Fake device %d", device);
  return CUDA_SUCCESS;
}
FAKE cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  *bytes = (mode() == "large" ? 141ull : 8ull + static_cast<unsigned>(device)) << 30;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid->bytes, 'a' + device, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (attribute > 140) return CUDA_ERROR_INVALID_VALUE;
  *value = static_cast<int>(attribute) * 10;
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)
    *value = mode() == "novmm" ? 0 : 1;
  return CUDA_SUCCESS;
}
FAKE cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                   CUmemAllocationGranularity_flags) {
  *bytes = 2u << 20;
  return CUDA_SUCCESS;
}
FAKE cuMemAddressReserve(CUdeviceptr* base, size_t size, size_t, CUdeviceptr wish, unsigned long long) {
  if (size > 1ull << 38 && mode() != "large") return CUDA_ERROR_OUT_OF_MEMORY;  // the worker must ask for less
  // "high": the first hint is ignored, and what is given reaches beyond a program's 47 bits of addresses.
  *base = mode() == "high" && wish == 0x2000'0000'0000 ? 0x7fc0'0000'1000 : wish;
  return CUDA_SUCCESS;
}
FAKE cuMemAddressFree(CUdeviceptr base, size_t) { return base == 0x7fc0'0000'1000 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
FAKE cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ++contexts;
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
FAKE cuDevicePrimaryCtxRelease(CUdevice) {
  return contexts-- > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
FAKE cuCtxSetCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
FAKE cuCtxPushCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
FAKE cuCtxPopCurrent(CUcontext* context) {
  *context = nullptr;
  return CUDA_SUCCESS;
}
FAKE cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -3;
  return CUDA_SUCCESS;
}
FAKE cuMemGetInfo(size_t* free, size_t* total) {
  *free = contexts > 0 ? 5ull << 30 : 0;
  *total = 8ull << 30;
  return CUDA_SUCCESS;
}
