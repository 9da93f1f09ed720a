// Simulated workers of a WorkerPool without processes: a fuzzer controls their ends of the control socket,
// the log and the session page. Single-threaded.
//
// take() checks what poold sends and aborts on messages that no worker knows and on missing or unexpected
// descriptors.
#pragma once
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "server/handover/handover.h"
#include "server/poold/workers/worker_process.h"

namespace gpupool::fuzz {

struct FakeWorker {
  pid_t pid = -1;
  int control = -1, output = -1;  // -1: has ended
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
  int wait_status = 0;  // wait_status and waited_for: set once it has ended
  bool waited_for = false;
  // Received from poold:
  uint64_t session = 0;
  std::string session_id, bulk_token, resume_key;
  uint64_t resumed = 0;  // connections with which its client has resumed the session
  uint64_t dump_question = 0, state_question = 0, migration = 0;  // ids of unanswered requests
  int image_space = -1;                                           // file to be filled with an image
  wire::ImageDigest image_name{};                                 // name and size of that image
  uint64_t image_bytes = 0;
  server::packet::ShareWanted share_wanted{};  // last request from another worker
  std::multiset<uint64_t> share_requests;      // its own unanswered requests
  std::multiset<uint64_t> reclaims;            // likewise
  bool ended() const { return control < 0; }
};

class FakeWorkers {
 public:
  ~FakeWorkers();
  // Valid as long as this object.
  server::WorkerProcesses processes();
  // Returns the worker in order of starting; null if there is none.
  FakeWorker* at(size_t index) { return index < workers_.size() ? workers_[index].get() : nullptr; }
  size_t count() const { return workers_.size(); }
  bool starts = true;     // false: starts fail
  bool immortal = false;  // kills have no effect, as if the driver kept the processes in the kernel

  // Ends the worker as if its process had exited; `status` is waitpid()'s. The pool learns of it in the next
  // run of its loop.
  void end(FakeWorker& worker, int status);
  // Sends a control message; does nothing if the worker has ended or poold does not read. `descriptor` -1:
  // none.
  template <server::ControlKind kind>
  void send(FakeWorker& worker, const server::ControlBody<kind>& body, const std::string& payload = {},
            int descriptor = -1) {
    const auto bytes = std::as_bytes(std::span(&body, 1));
    send(worker, kind, bytes.first(server::kControlBodyBytes<server::ControlBody<kind>>), payload,
         descriptor);
  }
  // The same for any kind, with a struct that need not fit it.
  void send(FakeWorker& worker, server::ControlKind kind, std::span<const std::byte> body,
            const std::string& payload, int descriptor);
  void send_raw(FakeWorker& worker, const std::string& bytes);
  void say_ready(FakeWorker& worker);
  // Receives and checks all messages that poold has sent to the worker.
  void take(FakeWorker& worker);
  // Fills the file that the worker was given for an image and, if `sealed`, seals it.
  void fill_image(FakeWorker& worker, bool sealed);

 private:
  Result<server::StartedWorker> start(const server::WorkerProgram&);
  static void note(FakeWorker& worker, const server::ControlMessage& message);
  static void answered(std::multiset<uint64_t>& requests, uint64_t request);

  std::vector<std::unique_ptr<FakeWorker>> workers_;
};

// The lowest free descriptor; unchanged by code that leaks none.
int next_descriptor();

}  // namespace gpupool::fuzz
