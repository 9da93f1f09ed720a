// cuLogs...: gives the program the library's log of errors (driver_log.h).
#include "protocol/driver/driver_log.h"
#include "protocol/driver/exports.h"

#if CUDA_VERSION >= 12090

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

using namespace gpupool::cuda;

namespace {

constexpr char kLost[] = "[older messages were dropped]\n";
constexpr char kCut[] = "[older messages do not fit the buffer]\n";

template <class Body>
CUresult without_exceptions(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

CUDA_EXPORT CUresult cuLogsRegisterCallback(CUlogsCallback callback, void* data,
                                            CUlogsCallbackHandle* handle) {
  if (!callback) return CUDA_ERROR_INVALID_VALUE;
  // CUlogLevel and Severity have the same numbers.
  static_assert(sizeof(CUlogLevel) == sizeof(int) &&
                static_cast<int>(Severity::warning) == CU_LOG_LEVEL_WARNING);
  void* const made = driver_log::add_listener(reinterpret_cast<driver_log::Listener>(callback), data);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  if (handle) *handle = static_cast<CUlogsCallbackHandle>(made);
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  return driver_log::remove_listener(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT CUresult cuLogsCurrent(CUlogIterator* iterator, unsigned int flags) {
  if (!iterator || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *iterator = driver_log::next();
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuLogsDumpToFile(CUlogIterator* iterator, const char* path, unsigned int flags) {
  if (!path || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return without_exceptions([&]() -> CUresult {
    bool lost = false;
    uint32_t end = 0;
    std::string text;
    for (const std::string& line : driver_log::since(iterator, &lost, &end)) text += line + '\n';
    if (lost) text.insert(0, kLost);
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) return CUDA_ERROR_INVALID_VALUE;
    const bool written = write_all(file, text);
    if (close(file) != 0 || !written) return CUDA_ERROR_OPERATING_SYSTEM;
    if (iterator) *iterator = end;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* size,
                                        unsigned int flags) {
  if (!buffer || !size || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return without_exceptions([&]() -> CUresult {
    bool lost = false;
    uint32_t end = 0;
    const auto lines = driver_log::since(iterator, &lost, &end);
    const size_t room = *size;
    *size = 0;
    if (room != 0) *buffer = '\0';
    // The newest lines that fit, after a line about the missing ones.
    size_t bytes = 1, first = lines.size();
    while (first > 0 && bytes + lines[first - 1].size() + 1 <= room) bytes += lines[--first].size() + 1;
    const auto head = [&] { return std::string_view(first != 0 ? kCut : lost ? kLost : ""); };
    while (!head().empty() && first < lines.size() && bytes + head().size() > room)
      bytes -= lines[first++].size() + 1;
    if (first == lines.size() && !lines.empty()) return CUDA_ERROR_INVALID_VALUE;
    if (lines.empty()) return CUDA_SUCCESS;
    std::string text(head());
    for (; first < lines.size(); ++first) text += lines[first] + '\n';
    std::memcpy(buffer, text.c_str(), text.size() + 1);
    *size = text.size();
    if (iterator) *iterator = end;
    return CUDA_SUCCESS;
  });
}
#endif
