// Serves clients that lock, checkpoint, restore and unlock other processes of their tenant
// (protocol/wire/checkpoint.h). Passes their questions to the sessions' workers; these clients get no worker
// of their own. Used by the daemon.
//
// Runs on poold's thread. Input is untrusted: questions have a fixed size and are read and answered one at a
// time; connections are limited in number for each tenant, and in time; a tenant gets at most 500 answers per
// second. When a client disconnects, its pending lock is cancelled.
#pragma once
#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <memory>

#include "server/poold/workers/client.h"
#include "server/poold/workers/refusal.h"
#include "server/poold/workers/state_changes.h"

namespace gpupool::server {

class CheckpointLink;

class Checkpoints {
 public:
  static constexpr size_t kMostOfTenant = 64;
  static constexpr size_t kMost = 1024;
  // Limit of the time between an answer and the next question.
  static constexpr std::chrono::milliseconds kSilence{60'000};
  static constexpr std::chrono::milliseconds kPatience{5'000};  // for a client that does not read its answer
  static constexpr std::chrono::milliseconds kLifeSign{500};  // interval of empty frames while a client waits
  // Pause before the next question is read, times the tenant's number of connections.
  static constexpr std::chrono::milliseconds kPause{2};
  using Refuse = std::function<void(Client, const Refusal&)>;

  Checkpoints(asio::io_context& context, StateChanges& states, Refuse refuse);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Serves an authenticated client, or refuses it if there are too many. Takes ownership of its descriptor.
  void admit(Client client);
  // Closes the connections of clients for which `clients` returns true.
  void drop_if(const std::function<bool(const Client&)>& clients);
  void close();

 private:
  friend class CheckpointLink;

  size_t links_of(const std::string& tenant) const;

  asio::io_context& context_;
  StateChanges& states_;
  const Refuse refuse_;
  std::list<std::shared_ptr<CheckpointLink>> links_;
};

}  // namespace gpupool::server
