#include "server/quota/shared_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace gpupool::quota {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Error failure(const char* what) {
  return {ErrorCode::unavailable, std::string(what) + ": " + std::generic_category().message(errno)};
}

}  // namespace

Result<SharedMapping> SharedMapping::create(const char* name, size_t bytes) {
  const int file = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return failure("cannot create a memory file for quotas");
  if (::ftruncate(file, static_cast<off_t>(bytes)) != 0 || ::fcntl(file, F_ADD_SEALS, kSeals) != 0) {
    const Error error = failure("cannot create a memory file for quotas");
    ::close(file);
    return error;
  }
  return open(file, bytes);
}

Result<SharedMapping> SharedMapping::open(int descriptor, size_t bytes) {
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  struct stat status {};
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(descriptor, &status) != 0 ||
      static_cast<size_t>(status.st_size) != bytes) {
    ::close(descriptor);
    return Error{ErrorCode::malformed, "not a memory file for quotas"};
  }
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) {
    const Error error = failure("cannot map a memory file for quotas");
    ::close(descriptor);
    return error;
  }
  return SharedMapping(descriptor, data, bytes);
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_) {}

SharedMapping::~SharedMapping() {
  if (data_) ::munmap(data_, bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace gpupool::quota
