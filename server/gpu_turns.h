// The turns that the workers take on the GPUs: an arbiter per GPU (quota/arbiter.h), and one per partition of a GPU, for what
// its tenant's sessions do at the same time; the tenants' shares, and the words in the
// session pages by which both sides talk. poold's one thread; never waits for a worker.
//
// A worker is believed that it wants a turn, that it gives one up, and what it has used, within the time that has passed:
// each can harm its own tenant only. One that has been taken over can use a GPU out of its turn, as the device itself then
// shares the time among processes.
#pragma once
#include <array>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <string>

#include "server/quota/arbiter.h"
#include "server/quota/session_page.h"
#include "server/quota/shared_page.h"
#include "server/quota/turn_word.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

class GpuTurns {
 public:
  using Page = std::shared_ptr<quota::SharedPage<quota::SessionPage>>;

  // `tenants` outlives it.
  GpuTurns(asio::io_context& context, Tenants& tenants, const quota::Arbiter::Settings& settings);
  // Before the worker may ask for anything.
  // `lane`: whose turns it takes part in: everybody's (empty), or those of one partition.
  void add(uint64_t session, const std::string& tenant, const std::string& lane, Page page);
  // Its worker has ended: what it had is the others' at once.
  void remove(uint64_t session);
  // The worker says that something has changed.
  void look_at(uint64_t session);
  // No more timers.
  void stop();

 private:
  using Time = quota::Arbiter::Time;
  struct Session {
    std::string tenant;
    std::string lane;
    Page page;
    std::map<uint32_t, quota::TurnWord> words;  // that were written, by GPU; those of the GPUs that it has wanted once
  };

  // The multiprocessors of one GPU that sessions use one after the other.
  struct Place {
    uint32_t gpu = 0;
    std::string lane;
    auto operator<=>(const Place&) const = default;
  };

  quota::Arbiter& arbiter(const Place& place);
  void read(uint64_t number, Session& session, uint32_t gpu, Time now);
  void write(const Place& place, const quota::Arbiter& its);
  void write_all();
  void set_timer();

  asio::steady_timer timer_;
  Tenants& tenants_;
  const quota::Arbiter::Settings settings_;
  std::map<std::string, quota::Quota> quotas_;  // by tenant
  std::map<Place, quota::Arbiter> arbiters_;
  std::map<uint64_t, Session> sessions_;
  bool stopped_ = false;
};

}  // namespace gpupool::server
