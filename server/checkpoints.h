// The clients that lock, checkpoint, restore and unlock other processes of their tenant (protocol/wire/checkpoint.h): poold passes on
// what they want to the sessions' workers, and no worker is taken for them.
//
// poold's one thread. What comes in is not trusted: questions have a fixed size, one is read and answered at a time, and connections are
// bounded in number for each tenant and in time, and all of a tenant's are answered 500 times a second at most. A client that leaves while its
// question is open takes back what is not done yet.
#pragma once
#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <memory>

#include "server/refusal.h"
#include "server/worker_pool.h"

namespace gpupool::server {

class CheckpointLink;

class Checkpoints {
 public:
  static constexpr size_t kMostOfTenant = 64;
  static constexpr size_t kMost = 1024;
  static constexpr std::chrono::milliseconds kSilence{60'000};   // between an answer and the next question
  static constexpr std::chrono::milliseconds kPatience{5'000};   // for a client that does not read
  static constexpr std::chrono::milliseconds kLifeSign{500};     // while it waits
  static constexpr std::chrono::milliseconds kPause{2};          // between an answer and reading the next question, times the tenant's connections
  using Refuse = std::function<void(Client, const Refusal&)>;

  Checkpoints(asio::io_context& context, WorkerPool& pool, Refuse refuse);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // A client that has shown whose it is. Takes over its descriptor.
  void admit(Client client);
  // Those of these clients lose their connections.
  void drop_if(const std::function<bool(const Client&)>& clients);
  void close();

 private:
  friend class CheckpointLink;

  size_t links_of(const std::string& tenant) const;

  asio::io_context& context_;
  WorkerPool& pool_;
  const Refuse refuse_;
  std::list<std::shared_ptr<CheckpointLink>> links_;
};

}  // namespace gpupool::server
