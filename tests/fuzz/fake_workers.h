// Workers of a WorkerPool that are no processes: their ends of the control socket, the log and the session
// page, for a fuzzer to play with.
//
// take() checks what poold sends: messages that a worker knows, with descriptors where they belong and
// nowhere else.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/handover.h"
#include "server/worker_process.h"

namespace gpupool::fuzz {

struct FakeWorker {
  pid_t pid = -1;
  int control = -1, output = -1;  // -1: it has ended
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
  int wait_status = 0;  // this and the next: once it has ended
  bool waited_for = false;
  // As it has heard:
  uint64_t session = 0;
  std::string session_id, bulk_token;
  uint64_t dump_question = 0, state_question = 0;  // that are not answered
  int image_space = -1;                            // a file to fill
  wire::ImageDigest image_name{};                  // this and the next: of that file
  uint64_t image_bytes = 0;
  server::ControlHeader share_wanted{};    // the last that came from another one
  std::multiset<uint64_t> share_requests;  // its own questions that are not answered
  bool ended() const { return control < 0; }
};

class FakeWorkers {
 public:
  ~FakeWorkers();
  // Good as long as this is.
  server::WorkerProcesses processes();
  // In the order in which they were started.
  FakeWorker* at(size_t index) { return index < workers_.size() ? workers_[index].get() : nullptr; }
  size_t count() const { return workers_.size(); }
  bool starts = true;  // else a start fails

  // As if the process had ended: `status` is waitpid()'s. The pool hears of it in the next turn of its loop.
  void end(FakeWorker& worker, int status);
  // Nothing happens where it has ended, or poold does not read. `descriptor` -1: none.
  void send(FakeWorker& worker, const server::ControlHeader& header, const std::string& payload,
            int descriptor = -1);
  void send_raw(FakeWorker& worker, const std::string& bytes);
  void say_ready(FakeWorker& worker);
  // Receives all that poold has sent it.
  void take(FakeWorker& worker);
  // Fills and seals the file that it was given for an image; with `sealed` false it stays writable.
  void fill_image(FakeWorker& worker, bool sealed);

 private:
  Result<server::StartedWorker> start(const server::WorkerProgram&);
  void note(FakeWorker& worker, const server::ControlMessage& message);

  std::vector<std::unique_ptr<FakeWorker>> workers_;
};

// The lowest free descriptor: the same before and after what leaks none.
int next_descriptor();

}  // namespace gpupool::fuzz
