#include "client/smi/api.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

namespace gpupool::smi {

std::string Api::load() {
  std::error_code failed;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", failed);
  const std::string path = program.parent_path().parent_path() / "lib/client/libnvidia-ml.so.1";
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return std::string("cannot load gpupool's libnvidia-ml.so.1: ") + ::dlerror();
#define SMI_LOAD(name)                                              \
  name = reinterpret_cast<decltype(name)>(::dlsym(library, #name)); \
  if (!name) return path + " lacks " #name "; it is from another gpupool release";
  SMI_FUNCTIONS(SMI_LOAD)
#undef SMI_LOAD
  return "";
}

}  // namespace gpupool::smi
