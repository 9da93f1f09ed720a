// The target's side of a migration: makes this session a copy of another worker's, by executing the commands
// that the source sends (docs/adr/0037-migration.md).
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "protocol/transport/transport.h"
#include "server/worker/migration/command_stream.h"

namespace gpupool::worker {

class Session;

class Adoption {
 public:
  explicit Adoption(Session& session) : session_(session) {}
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;

  // The source's connection, which has presented the key of adopt_session. Any thread.
  void take(std::unique_ptr<transport::Connection> source);
  // Ends the wait for the source and its connection, when the session is over. Any thread.
  void stop();
  // The client's connection broke. Fails the adoption if one is underway, and later ones: the client
  // continues at the source. Any thread.
  void client_is_lost();

  // Executes the source's commands. Returns the number of the source's last command. Executor's thread.
  Result<uint64_t> run();
  // True while the source's commands are executed. Executor's thread.
  bool running() const { return running_; }

 private:
  void stop_locked();  // with mutex_ held
  Result<uint64_t> adopt();
  Result<uint64_t> execute_all(transport::Connection& source);
  void expect_object(const CommandReceiver::Received& command);

  Session& session_;
  bool running_ = false;  // executor's thread
  std::mutex mutex_;      // guards the rest
  std::condition_variable changed_;
  std::unique_ptr<transport::Connection> source_;
  bool stopped_ = false;
  bool underway_ = false;
  bool client_lost_ = false;
};

}  // namespace gpupool::worker
