// A WorkerPool with simulated workers (fake_workers.h), a virtual clock (virtual_time.h) and two tenants. For
// fuzz_worker_control and fuzz_checkpoints; single-threaded.
#pragma once
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/poold/workers/worker_pool.h"
#include "tests/fuzz/fake_workers.h"
#include "tests/fuzz/virtual_time.h"

namespace gpupool::fuzz {

class FakePool {
 public:
  explicit FakePool(unsigned idle_workers = 1)
      : pool_(loop_.context,
              {.processes = workers_.processes(),
               .idle_workers = idle_workers,
               .max_sessions = 4,
               .image_cache_bytes = 64 * 1024,
               .host_memory_for_idle = uint64_t{4} << 30,
               .host_memory_for_checkpoints = uint64_t{2} << 30,
               .dead_peer_timeout = std::chrono::seconds(15),
               .resume_timeout = std::chrono::seconds(30),
               .peers = *server::Networks::parse("none")},
              tenants_, [this](server::Client client, const server::Refusal& refusal) {
                refuse(std::move(client), refusal);
              }) {
    pool_.refuse_when([this]() -> std::optional<server::Refusal> {
      if (!refusing) return std::nullopt;
      return server::Refusal{control::HelloReply::BUSY, "not now"};
    });
    pool_.start([](const Result<void>&) {});
  }

  // Returns a client whose peer end this object keeps open.
  server::Client new_client(const std::string& tenant, int64_t pid) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
    clients_.push_back(ends[1]);
    server::Client client{.descriptor = ends[0], .transport = "tcp", .hello = "hello", .tenant = tenant};
    client.host = "host";
    client.pid = pid;
    return client;
  }
  // True if the session is of the client's tenant and lease.
  bool belongs(uint64_t session, const server::Client& client) const {
    bool is_own = false;
    pool_.for_each_session([&](const server::SessionView& view) {
      if (view.number == session)
        is_own = view.client.tenant == client.tenant && view.client.lease == client.lease;
    });
    return is_own;
  }
  int client_end(size_t index) const { return clients_[index]; }
  size_t client_ends() const { return clients_.size(); }
  // Assigns the next worker to a client of the tenant; all workers report that they are ready.
  void begin_session(const std::string& tenant, int64_t pid) {
    pool_.assign(new_client(tenant, pid));
    all_say_ready();
  }
  void all_say_ready() {
    for (size_t i = ready_; i < workers_.count(); ++i) workers_.say_ready(*workers_.at(i));
    ready_ = workers_.count();
    loop_.settle();
  }
  // Replaces the tenants of the configuration. The bits of `how` give "b" a partition, limit "a", and remove
  // "b".
  void reconfigure(uint32_t how) {
    auto tenants = two_tenants();
    if ((how & 1) != 0) {
      tenants[1].quota.mode = quota::Mode::partition;
      tenants[1].quota.each.compute_milli = 250;
    }
    if ((how & 2) != 0) tenants[0].quota.sessions = 1;
    if ((how & 4) != 0) tenants.pop_back();
    tenants_.replace(std::move(tenants));
  }
  // Adds the tenant of a lease of the second GPU, or removes it if it has no sessions.
  void change_lease(bool ends) {
    bool used = pool_.state().waiting != 0;
    pool_.for_each_session([&](const server::SessionView& view) { used |= view.client.tenant == "leased"; });
    if (ends && !used) return tenants_.remove_lease("leased");
    server::Tenant tenant;
    tenant.name = "leased";
    tenant.leased = true;
    tenant.gpus = {1};
    tenants_.put_lease(std::move(tenant));
  }

  enum class End { by_themselves, killed, left_behind };
  // Ends all workers and with them their sessions and clients.
  void stop(End how = End::by_themselves) {
    bool stopped = false;
    workers_.immortal = how == End::left_behind;
    pool_.stop([&stopped] { stopped = true; });
    loop_.settle();
    for (int times = 0; how != End::by_themselves && times < 2; ++times) loop_.pass(std::chrono::minutes(1));
    if (how != End::by_themselves && !stopped) std::abort();
    workers_.immortal = false;
    for (size_t i = 0; i < workers_.count(); ++i) {
      if (!workers_.at(i)->ended()) workers_.end(*workers_.at(i), 0);
    }
    loop_.settle();
    if (!stopped) std::abort();
    for (const int end : clients_) ::close(end);
    clients_.clear();
  }

  Loop& loop() { return loop_; }
  FakeWorkers& workers() { return workers_; }
  server::WorkerPool& pool() { return pool_; }
  server::Tenants& tenants() { return tenants_; }
  uint64_t refused() const { return refused_; }

  bool refusing = false;  // new clients are refused, as while poold drains

 private:
  static std::vector<server::Tenant> two_tenants() {
    std::vector<server::Tenant> tenants(2);
    tenants[0].name = "a";
    tenants[0].quota.each.guaranteed_memory_bytes = uint64_t{1} << 30;
    tenants[1].name = "b";
    tenants[1].quota.sessions = 2;
    return tenants;
  }
  void refuse(server::Client client, const server::Refusal& refusal) {
    if (client.descriptor < 0 || refusal.reason.empty()) std::abort();
    ++refused_;
    ::close(client.descriptor);
  }

  Loop loop_;
  FakeWorkers workers_;
  server::Tenants tenants_{two_tenants()};
  server::WorkerPool pool_;
  std::vector<int> clients_;
  size_t ready_ = 0;  // number of workers that have reported ready
  uint64_t refused_ = 0;
};

}  // namespace gpupool::fuzz
