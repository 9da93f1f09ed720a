// A file to which lines of JSON are appended, for those who want to know afterwards who did what.
//
// Each line has the process's `boot`, a random number, and `seq`, which counts from 1 without a gap, also over a rotation: a line that is
// missing or was put elsewhere shows. Lines that are lost have numbers, too.
//
// A thread of its own writes, since a disk or pipe may stall. append() waits until the line is written, so that the record of what happens is there
// before it happens, but not for long, and not at all from then on until all lines are written. Where that takes longer, stalled() is true, and
// whoever appends should begin nothing new that has to be recorded. What cannot be written at all is in the log, with the whole line. One thread
// calls.
#pragma once
#include <chrono>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "protocol/wire/result.h"
#include "server/log/log.h"

namespace gpupool::server {

class AuditFile {
 public:
  static constexpr std::chrono::milliseconds kPatience{200};  // of append(), the first time
  static constexpr std::chrono::milliseconds kStalled{2'000};
  static constexpr std::chrono::milliseconds kLastPatience{2'000};
  static constexpr size_t kMostWaiting = 16'384;  // lines; more are lost, and counted in the log and the file

  explicit AuditFile(std::string path);  // empty: none
  ~AuditFile();
  AuditFile(const AuditFile&) = delete;
  AuditFile& operator=(const AuditFile&) = delete;

  // Again after a rotation: the thread then opens it, and logs where that fails and the old file stays in use.
  Result<void> open();
  void append(std::string_view event, std::span<const log::Field> fields);
  void append(std::string_view event, std::initializer_list<log::Field> fields) { append(event, std::span(fields.begin(), fields.size())); }
  // The same for what may come without bound: lost once half of the room is taken.
  void append_if_room(std::string_view event, std::initializer_list<log::Field> fields);
  bool stalled() const;
  struct Counts {
    uint64_t records = 0, lost = 0;  // all that were numbered, and those of them that are not in the file
  };
  Counts counts() const;

 private:
  struct Queue;
  void append(std::string line, size_t most_waiting);

  const std::shared_ptr<Queue> queue_;  // the thread's too, which may outlive this in write()
  bool started_ = false;
};

}  // namespace gpupool::server
