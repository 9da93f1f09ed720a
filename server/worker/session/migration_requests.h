// poold's request that the client migrate the session (docs/adr/0037-migration.md), or suspend it
// (docs/adr/0038-suspended-sessions.md): passes it to the client, and the client's answer to poold. Part of
// Session; each function names its thread.
//
// The control thread receives the request, and the background thread sends it to the client: sending may
// block while the client does not read or its connection is broken, and the control thread brings the
// connection on which the client resumes.
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/wire/migration.h"
#include "server/worker/session/outbox.h"
#include "server/worker/session/session_start.h"

namespace gpupool::worker {

class MigrationRequests {
 public:
  MigrationRequests(const SessionStart& start, Outbox& outbox);
  ~MigrationRequests();
  MigrationRequests(const MigrationRequests&) = delete;
  MigrationRequests& operator=(const MigrationRequests&) = delete;

  // Receives requests from now on until end(). Executor's thread.
  void begin();
  void end();
  // Readable while send_to_client() has something to send.
  int descriptor() const { return wake_; }
  // Background thread.
  void send_to_client();
  // Background thread, about once a second. A program that does not call CUDA does not read the wish: breaks
  // its connection, so that its client resumes and reads. Again, with growing patience, until the client is
  // known to have read: a connection that broke by itself may have lost the wish, and what is sent again
  // after the client has resumed is not read either.
  void rouse_client();
  // The client has begun to migrate. Executor's thread.
  void client_tries();
  // The socket of an open request to suspend the session, which the caller then owns; -1: there is none.
  int take_file();
  // Takes the client's answer and tells poold. Returns false if poold has made no request of this number.
  // Executor's thread.
  bool answered(const wire::EndMigration& answer, std::string_view reason);
  // True if the client has migrated the session, which ends then. Executor's thread.
  bool has_left() const { return left_; }

 private:
  void receive(const server::ControlMessage& message);
  void use_file(int descriptor);  // call with mutex_ held
  // Tells poold how the request ended. Returns false if poold does not read.
  bool report(uint64_t number, bool migrated, std::string_view reason);

  const SessionStart& start_;
  Outbox& outbox_;
  const int wake_;
  bool left_ = false;
  std::mutex mutex_;       // guards the rest
  uint64_t open_ = 0;      // number of the request that the client has not answered; 0: none
  unsigned ticks_ = 0;     // of rouse_client() since the request was sent, or since the last break by it
  unsigned patience_ = 0;  // ticks until the next break
  bool is_awake_ = false;  // the client has read the request
  std::optional<std::string> unsent_;  // its address, until it is sent to the client
  int file_ = -1;                      // of a request to suspend the session
};

}  // namespace gpupool::worker
