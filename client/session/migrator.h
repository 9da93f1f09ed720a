// A new session, on which a session of this process goes on: on another server to which it moves
// (docs/adr/0037-migration.md), or after it was suspended (docs/adr/0038-suspended-sessions.md).
// Session::migrate() and Session::suspend() have the order of the steps. One thread.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/process/settings.h"
#include "client/session/peer_route.h"
#include "protocol/control/hello_codec.h"
#include "protocol/transport/resume/resumable_connection.h"
#include "protocol/wire/migration.h"

namespace gpupool::client {

// The settings for a session with this server, with the token that the lease file has for it.
Result<Settings> settings_for(const std::string& address, Settings settings);
// Returns a function that returns the token for the settings' server. The lease file has new ones from time
// to time; while it has none, the last one remains.
std::function<std::string()> present_token(const Settings& settings);

class Migrator {
 public:
  // Connects to the server and starts a session there.
  static Result<std::unique_ptr<Migrator>> open(const std::string& address, const Settings& settings);
  // A suspended session, as its server's hello has named it.
  struct Suspended {
    std::string session_id, resume_key;
    uint64_t attempts = 0;     // to return to it
    std::string failure = {};  // why the last one failed, until the server was told
  };
  // Asks the server for a suspended session, and waits while the server does. If reply().status is not `ok`,
  // the session is still suspended. ErrorCode::refused: the session is over.
  static Result<std::unique_ptr<Migrator>> come_back(const std::string& address, const Settings& settings,
                                                     Suspended& suspended);
  // Tells the server that a suspended session goes on, so that it removes the file.
  static Result<void> forget(const std::string& address, const Settings& settings, Suspended& suspended);

  // Checks that all that the program was told about its devices is true of this server's. The error says what
  // differs.
  Result<void> compare(const std::vector<hello::Device>& known, int driver_version) const;
  // Asks the server to take over a session whose worker will connect to it.
  Result<void> ask_to_adopt();
  // For the worker that sends the session, which is the session's present one. `same_server`: it belongs to
  // this server, too. ErrorCode::refused: it may not send to this server; see choose_peer_route().
  Result<wire::PeerTarget> target(const PeerEnd& source, bool same_server) const;
  // Waits for the answer to ask_to_adopt(). Returns the number of the last command that the server counts.
  Result<uint64_t> adopted(std::chrono::seconds longest);
  // The body of the migration_wish that came before that answer, and that the session has to answer when it
  // goes on here; empty: none came.
  std::vector<std::byte> take_wish() { return std::exchange(wish_, {}); }

  const hello::HelloReply& reply() const { return reply_; }
  const transport::Endpoint& server() const { return server_; }
  const transport::Options& options() const { return options_; }
  const Settings& settings() const { return settings_; }
  transport::ResumableConnection& connection() { return *connection_; }
  std::unique_ptr<transport::ResumableConnection> take_connection() { return std::move(connection_); }

 private:
  Migrator(transport::Endpoint server, transport::Options options, Settings settings)
      : server_(std::move(server)), options_(std::move(options)), settings_(std::move(settings)) {}
  Result<void> say_hello(const Settings& settings, Suspended* suspended);
  // Nothing mends this connection yet, so its break is an error.
  Result<void> receive(std::span<std::byte> buffer, transport::Clock::time_point deadline);
  static Result<std::unique_ptr<Migrator>> connect(const transport::Endpoint& server,
                                                   const Settings& settings);

  const transport::Endpoint server_;
  const transport::Options options_;
  const Settings settings_;
  std::unique_ptr<transport::ResumableConnection> connection_;
  hello::HelloReply reply_;
  std::vector<std::byte> wish_;
};

}  // namespace gpupool::client
