// Moves a session between its worker and a file: poold's end of the socket over which the worker migrates as
// it does to another server (docs/adr/0037-migration.md). The commands are not interpreted, only cut into
// records.
//
// Each function runs on a thread of its own, since it waits for a worker and for a file system. Shutting the
// socket down from another thread ends it.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/result.h"
#include "protocol/control/suspension.pb.h"
#include "server/suspension/record_file.h"

namespace gpupool::suspension {

// Bytes of files of one kind. Any thread.
class Budget {
 public:
  explicit Budget(uint64_t limit) : limit_(limit) {}
  bool take(uint64_t bytes) {
    if (used_.fetch_add(bytes) + bytes <= limit_) return true;
    used_.fetch_sub(bytes);
    return false;
  }
  // Counts bytes that exist already, even beyond the limit.
  void add(uint64_t bytes) { used_.fetch_add(bytes); }
  void give_back(uint64_t bytes) { used_.fetch_sub(bytes); }
  uint64_t used() const { return used_.load(); }
  uint64_t limit() const { return limit_; }

 private:
  std::atomic<uint64_t> used_{0};
  const uint64_t limit_;
};

// Writes what the worker behind `socket` sends, after `header`, until its last command. Adds the file's bytes
// to `written` as it takes them from `budget`; also after an error. ErrorCode::limit: the budget is used up.
Result<void> store_session(int socket, int file, const Header& header, const std::optional<Secret>& secret,
                           Budget& budget, std::atomic<uint64_t>& written);
// Tells the worker whether its session is in the file. Does not block.
void answer_worker(int socket, const Result<void>& stored);

// Reads the header, which is the first record.
Result<Header> read_header(RecordReader& reader);
// Sends the rest of the file to the new worker behind `socket`, and returns its answer. A record is sent when
// the one behind it, or the end, has been found to be genuine.
Result<void> restore_session(RecordReader& reader, int socket);

}  // namespace gpupool::suspension
