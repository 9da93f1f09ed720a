// The library itself, its versions, and processes of this host.
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "protocol/nvml/library.h"

using namespace gpupool::nvml;

namespace {

nvmlReturn_t initialise(bool may_be_empty) {
  try {
    return library().initialise(may_be_empty);
  } catch (...) {
    return NVML_ERROR_MEMORY;
  }
}

// NVIDIA's driver has its own version, which servers do not report. Returns the first driver release that
// supported this CUDA version, from NVIDIA's list.
std::string driver_version(int cuda) {
  struct Release {
    int cuda;
    const char* driver;
  };
  constexpr Release kReleases[] = {
      {13010, "590.44.01"}, {13000, "580.65.06"}, {12090, "575.51.03"}, {12080, "570.26"},
      {12060, "560.28.03"}, {12050, "555.42.02"}, {12040, "550.54.14"}, {12030, "545.23.06"},
      {12020, "535.54.03"}, {12010, "530.30.02"}, {12000, "525.60.13"}, {11080, "520.61.05"},
  };
  for (const Release& release : kReleases) {
    if (cuda >= release.cuda) return release.driver;
  }
  return "450.80.02";
}

}  // namespace

NVML_EXPORT nvmlReturn_t nvmlInit() {
  return initialise(false);
}
NVML_EXPORT nvmlReturn_t nvmlInit_v2() {
  return initialise(false);
}
NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  if (flags &
      ~static_cast<unsigned>(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH | NVML_INIT_FLAG_FORCE_INIT))
    return NVML_ERROR_INVALID_ARGUMENT;
  return initialise((flags & NVML_INIT_FLAG_NO_GPUS) != 0);
}

NVML_EXPORT nvmlReturn_t nvmlShutdown() {
  try {
    return library().shutdown();
  } catch (...) {
    return NVML_ERROR_UNKNOWN;
  }
}

NVML_EXPORT const char* nvmlErrorString(nvmlReturn_t result) {
  switch (static_cast<int>(result)) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 5: return "Already Initialized";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 8: return "Insufficient External Power";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 11: return "Interrupt Request Issue";
    case 12: return "NVML Shared Library Not Found";
    case 13: return "Function Not Found";
    case 14: return "Corrupted infoROM";
    case 15: return "GPU is lost";
    case 16: return "GPU requires restart";
    case 17: return "The operating system has blocked the request.";
    case 18: return "RM has detected an NVML/RM version mismatch.";
    case 19: return "In use by another client";
    case 20: return "Insufficient Memory";
    case 21: return "No data";
    case 22: return "VGPU ECC not supported";
    case 23: return "Insufficient resources";
    case 24: return "Frequency not supported";
    case 25: return "Argument version mismatch";
    case 26: return "Deprecated";
    case 27: return "Not ready";
    case 28: return "No GPUs found";
    case 29: return "Invalid state";
    default: return "Unknown Error";
  }
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  return library().with_library(
      [&](const Library& open) { return *version = open.driver_version(), NVML_SUCCESS; });
}
NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  return library().with_library(
      [&](const Library& open) { return copy_text(driver_version(open.driver_version()), version, length); });
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t* branch,
                                                   unsigned int length) {
  return library().with_library([&](const Library& open) {
    if (!branch) return NVML_ERROR_INVALID_ARGUMENT;
    if (branch->version != NVML_STRUCT_VERSION(nvmlSystemDriverBranchInfo_t, 1))
      return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const std::string version = driver_version(open.driver_version());
    return copy_text("r" + version.substr(0, version.find('.')) + "_00", branch->branch,
                     std::min<unsigned>(length, sizeof branch->branch));
  });
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  return library().with_library([&](const Library& open) {
    return copy_text("13." + driver_version(open.driver_version()), version, length);
  });
}

// Any process of this host, whether it uses a GPU or not: /proc shows as much to every user.
NVML_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  return library().with_library([&](const Library&) {
    if (!name || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
    char words[1024] = "";
    const int file = ::open(("/proc/" + std::to_string(pid) + "/cmdline").c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t read = file >= 0 ? ::read(file, words, sizeof words - 1) : 0;
    if (file >= 0) ::close(file);
    if (read <= 0) return NVML_ERROR_NOT_FOUND;
    const std::string program = words;  // the first word, cut to the buffer as NVML does
    program.copy(name, length - 1);
    name[std::min<size_t>(program.size(), length - 1)] = '\0';
    return NVML_SUCCESS;
  });
}

NVML_EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int* count) {
  return library().with_library([&](const Library&) { return give(std::optional(0), count); });
}
NVML_EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int* count) {
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}
