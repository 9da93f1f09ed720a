// A new session on another server, to which a session of this process moves (docs/adr/0037-migration.md).
// Session::migrate() has the order of the steps. One thread.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "client/process/settings.h"
#include "protocol/control/hello_codec.h"
#include "protocol/transport/resume/resumable_connection.h"
#include "protocol/wire/migration.h"

namespace gpupool::client {

class Migrator {
 public:
  // Connects to the server and starts a session there. `same_server`: the session is there already.
  static Result<std::unique_ptr<Migrator>> open(const std::string& address, bool same_server,
                                                const Settings& settings);

  // Checks that all that the program was told about its devices is true of this server's. The error says what
  // differs.
  Result<void> compare(const std::vector<hello::Device>& known, int driver_version) const;
  // Asks the server to take over a session whose worker will connect to it.
  Result<void> ask_to_adopt();
  // For the worker that sends the session. ErrorCode::refused: no worker can connect to this server.
  Result<wire::PeerTarget> target() const;
  // Waits for the answer to ask_to_adopt(). Returns the number of the last command that the server counts.
  Result<uint64_t> adopted();

  const hello::HelloReply& reply() const { return reply_; }
  const transport::Endpoint& server() const { return server_; }
  const transport::Options& options() const { return options_; }
  transport::ResumableConnection& connection() { return *connection_; }
  std::unique_ptr<transport::ResumableConnection> take_connection() { return std::move(connection_); }

 private:
  Migrator(transport::Endpoint server, transport::Options options)
      : server_(std::move(server)), options_(std::move(options)) {}
  Result<void> say_hello(const Settings& settings);

  const transport::Endpoint server_;
  const transport::Options options_;
  std::unique_ptr<transport::ResumableConnection> connection_;
  hello::HelloReply reply_;
};

}  // namespace gpupool::client
