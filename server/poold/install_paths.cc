#include "server/poold/install_paths.h"

#include <filesystem>
#include <system_error>

namespace gpupool::server {
namespace {

namespace fs = std::filesystem;

Result<fs::path> program_folder() {
  std::error_code status;
  const fs::path program = fs::read_symlink("/proc/self/exe", status);
  if (status) return Error{ErrorCode::unavailable, "cannot read /proc/self/exe: " + status.message()};
  return program.parent_path();
}

Result<std::string> existing(const fs::path& path, const std::string& what, const std::string& advice) {
  std::error_code status;
  if (fs::is_regular_file(path, status)) return path.lexically_normal().string();
  return Error{ErrorCode::unavailable,
               what + " was not found at " + path.lexically_normal().string() + "; " + advice};
}

}  // namespace

Result<std::string> device_library_path(const std::string& device) {
  if (device == "nvidia") return std::string("libcuda.so.1");
  if (device == "softgpu") {
    const auto folder = program_folder();
    if (!folder) return folder.error();
    return existing(*folder / ".." / "lib" / "softgpu" / "libcuda.so.1", "softgpu's library",
                    "build the whole tree, or give --device a path");
  }
  if (device.find('/') == std::string::npos) {
    return Error{ErrorCode::invalid, "unknown device '" + device +
                                         "'; use softgpu, nvidia, or a path with a '/' to a device library"};
  }
  std::error_code status;
  const fs::path path = fs::absolute(device, status);
  return existing(status ? fs::path(device) : path, "the device library", "check --device");
}

Result<std::string> worker_program_path() {
  const auto folder = program_folder();
  if (!folder) return folder.error();
  return existing(*folder / "poold-worker", "the worker program",
                  "build or install poold-worker beside poold");
}

}  // namespace gpupool::server
