// The file of a timeline: a JSON array of trace events, one per line, which several processes append to.
//
// Each append() overwrites the closing bracket with further events and a new bracket, in one write and under
// a lock of the file, so the file is complete JSON whenever no write is in progress. If a process is killed
// in the middle of a write, the next append() cuts off the incomplete line; viewers accept it as well. The
// file never exceeds its limit. One thread at a time; errors are returned.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "common/descriptor.h"
#include "common/result.h"

namespace gpupool::client::timeline {

class TraceFile {
 public:
  static constexpr uint64_t kUsualLimit = 256u << 20;
  // Room that only append_last() may use, for the reasons why events are missing.
  static constexpr uint64_t kLastBytes = 64u << 10;
  static constexpr size_t kMostAtOnce = 256u << 10;  // bytes of one append()

  // Creates a timeline with one event (JSON), replacing what the file had.
  static Result<void> create(const std::string& path, std::string_view event);
  // Opens a timeline, or makes a new one. ErrorCode::invalid: the file is something else.
  static Result<TraceFile> open(const std::string& path, uint64_t limit = kUsualLimit);

  // Appends events: JSON objects, separated by ",\n". ErrorCode::limit: the file has reached its limit.
  Result<void> append(std::string_view events) { return append_within(events, limit_ - kLastBytes); }
  Result<void> append_last(std::string_view events) { return append_within(events, limit_); }

 private:
  TraceFile(int descriptor, uint64_t limit) : file_(descriptor), limit_(limit) {}
  Result<void> append_within(std::string_view events, uint64_t limit);
  Result<void> append_locked(std::string_view events, uint64_t limit);

  Descriptor file_;
  uint64_t limit_;
};

}  // namespace gpupool::client::timeline
