#include "server/handover/sealed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace gpupool::server {
namespace {

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
constexpr long kTmpfsMagic = 0x01021994;  // hugetlbfs has another one; its mappings round sizes up

}  // namespace

Result<int> make_image_file(uint64_t image_bytes) {
  const int file = ::memfd_create("gpupool-image", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file >= 0 && ::ftruncate(file, static_cast<off_t>(image_bytes + 1)) == 0 &&
      ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
    return file;
  }
  const int error = errno;
  if (file >= 0) ::close(file);
  return Error{ErrorCode::unavailable,
               "cannot create a memory file for an image: " + std::generic_category().message(error)};
}

Result<void> fill_image_file(int file, std::span<const std::byte> image) {
  bool good = true;
  for (size_t at = 0; good && at < image.size();) {
    const ssize_t written = ::pwrite(file, image.data() + at, image.size() - at, static_cast<off_t>(at));
    if (written > 0)
      at += static_cast<size_t>(written);
    else
      good = written < 0 && errno == EINTR;
  }
  if (good && ::fcntl(file, F_ADD_SEALS, kSeals) == 0) return {};
  return Error{ErrorCode::unavailable,
               "cannot write an image into its memory file: " + std::generic_category().message(errno)};
}

bool is_sealed_file(int descriptor, uint64_t image_bytes) {
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  struct stat status {};
  struct statfs system {};
  return seals >= 0 && (seals & kSeals) == kSeals && ::fstat(descriptor, &status) == 0 &&
         S_ISREG(status.st_mode) && static_cast<uint64_t>(status.st_size) == image_bytes + 1 &&
         ::fstatfs(descriptor, &system) == 0 && system.f_type == kTmpfsMagic;
}

}  // namespace gpupool::server
