// Appends audit records, as lines of JSON, to a file. Audit owns it and calls all functions on one thread.
//
// Each line has `boot`, a random number of this process, and `seq`, which counts from 1 without gaps, also
// across rotations, so that a missing or moved line can be detected. Lost lines have numbers, too.
//
// A thread of its own writes, since a disk or pipe may stall. append() waits up to kPatience for its line to
// be written, so that a record is in the file before the recorded event happens. After a timeout, append()
// does not wait again until all lines are written. If that takes longer than kStalled, stalled() is true, and
// callers should begin nothing that has to be recorded. A line that cannot be written is put into the log as
// a whole.
#pragma once
#include <chrono>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/log/log.h"
#include "common/result.h"

namespace gpupool {

class AuditFile {
 public:
  static constexpr std::chrono::milliseconds kPatience{200};  // of append(), until the first timeout
  static constexpr std::chrono::milliseconds kStalled{2'000};
  static constexpr std::chrono::milliseconds kLastPatience{2'000};
  static constexpr size_t kMostWaiting = 16'384;  // lines; more are lost, and counted in the log and the file

  explicit AuditFile(std::string path);  // empty: no file
  ~AuditFile();
  AuditFile(const AuditFile&) = delete;
  AuditFile& operator=(const AuditFile&) = delete;

  // Opens the file and starts the thread. Call it again after a rotation: the thread then reopens the file,
  // or on failure logs it and keeps the old file.
  Result<void> open();
  void append(std::string_view event, std::span<const log::Field> fields);
  void append(std::string_view event, std::initializer_list<log::Field> fields) {
    append(event, std::span(fields.begin(), fields.size()));
  }
  // Like append(), for records whose number is unlimited: lost once half of the queue is in use.
  void append_if_room(std::string_view event, std::initializer_list<log::Field> fields);
  bool stalled() const;
  struct Counts {
    uint64_t records = 0, lost = 0;  // all numbered records, and those that are not in the file
  };
  Counts counts() const;
  bool written() const;  // no record waits
  // `boot` and the numbers of the records, for another program of this process. Call continue_as() before
  // open().
  struct Identity {
    std::string boot;  // empty: there is no file
    Counts counts;
  };
  Identity identity() const;
  void continue_as(const Identity& identity);

 private:
  struct Queue;
  void append(std::string line, size_t most_waiting);

  const std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive this object in write()
  bool started_ = false;
};

}  // namespace gpupool
