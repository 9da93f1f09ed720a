#include "client/timeline/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "common/files/locked_file.h"

namespace gpupool::client::timeline {
namespace {

constexpr std::string_view kBegin = "[\n", kSeparator = ",\n", kEnd = "\n]\n";
// An incomplete line is at most as long as what was written at once.
constexpr uint64_t kMostToRepair = 2 * TraceFile::kMostAtOnce;
// Another process may have been stopped while it holds the lock.
constexpr std::chrono::milliseconds kLongestLock{2000};

Error failure(const char* what) {
  return {ErrorCode::unavailable, std::string(what) + ": " + std::generic_category().message(errno)};
}

Result<void> write_at(int file, std::string_view bytes, uint64_t at) {
  if (!files::write_at(file, bytes.data(), bytes.size(), at)) return failure("cannot write");
  return {};
}

Result<std::string> read_at(int file, uint64_t at, size_t size) {
  std::string bytes(size, '\0');
  const ssize_t got = files::read_at(file, bytes.data(), size, at);
  if (got < 0) return failure("cannot read");
  bytes.resize(static_cast<size_t>(got));
  return bytes;
}

// Returns where the last complete event ends.
Result<uint64_t> end_of_events(int file, uint64_t size) {
  const auto bytes = std::min<uint64_t>(size, kMostToRepair);
  const uint64_t first = size - bytes;
  auto tail = read_at(file, size - std::min<uint64_t>(size, kEnd.size()), kEnd.size());
  if (!tail) return tail.error();
  if (*tail == kEnd) return size - kEnd.size();
  // A process was killed in the middle of a write.
  tail = read_at(file, first, bytes);
  if (!tail) return tail.error();
  const size_t line = tail->rfind("},\n");
  return line == std::string::npos ? kBegin.size() : first + line + 1;
}

}  // namespace

Result<void> TraceFile::create(const std::string& path, std::string_view event) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file.number() < 0) return failure("cannot create");
  return write_at(file.number(), std::string(kBegin) + std::string(event) + std::string(kEnd), 0);
}

Result<TraceFile> TraceFile::open(const std::string& path, uint64_t limit) {
  TraceFile file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600), std::max(limit, 2 * kLastBytes));
  if (file.file_.number() < 0) return failure("cannot open");
  const auto begin = read_at(file.file_.number(), 0, kBegin.size());
  if (!begin) return begin.error();
  if (!begin->empty() && *begin != kBegin)
    return Error{ErrorCode::invalid, "the file exists and is not a timeline"};
  return file;
}

Result<void> TraceFile::append_within(std::string_view events, uint64_t limit) {
  if (events.empty()) return {};
  // A lock of the process would end when the program closes another descriptor of the file.
  const files::FileLock lock(file_.number(), files::LockOwner::open_file, kLongestLock);
  if (!lock.held()) return Error{ErrorCode::unavailable, "another process keeps the file locked"};
  return append_locked(events, limit);
}

Result<void> TraceFile::append_locked(std::string_view events, uint64_t limit) {
  struct stat about {};
  if (::fstat(file_.number(), &about) != 0) return failure("cannot read the size");
  const auto size = static_cast<uint64_t>(about.st_size);
  uint64_t end = 0;
  if (size > kBegin.size()) {
    const auto found = end_of_events(file_.number(), size);
    if (!found) return found.error();
    end = *found;
  }
  std::string bytes(end == 0 ? kBegin : end == kBegin.size() ? "" : kSeparator);
  bytes.append(events).append(kEnd);
  if (end + bytes.size() > limit) return Error{ErrorCode::limit, "the file has reached its limit"};
  if (const auto written = write_at(file_.number(), bytes, end); !written) {
    // Restores what was there: the file system may be full.
    (void)write_at(file_.number(), kEnd, end);
    if (::ftruncate(file_.number(), static_cast<off_t>(end + kEnd.size())) != 0) return failure("cannot cut");
    return written;
  }
  const uint64_t now = end + bytes.size();
  // Only after an incomplete line that was longer.
  if (now < size && ::ftruncate(file_.number(), static_cast<off_t>(now)) != 0) return failure("cannot cut");
  return {};
}

}  // namespace gpupool::client::timeline
