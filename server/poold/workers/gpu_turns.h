// Gives workers turns on the GPUs, with an arbiter (server/quota/arbiter.h) for each GPU and one for each
// partition of a GPU, whose tenant's sessions share it. Applies the tenants' shares, and exchanges words with
// the workers through the session pages (server/quota/turn_word.h). WorkerPool uses it on poold's thread; it
// never waits for a worker.
//
// Within the time that has passed, a worker's reports are believed: that it wants a turn, gives one up, and
// how much time it used. False ones harm only its own tenant. A compromised worker can use a GPU out of turn;
// the device then shares its time among processes.
#pragma once
#include <array>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <string>

#include "server/poold/upgrade/state.pb.h"
#include "server/quota/arbiter.h"
#include "server/quota/session_page.h"
#include "server/quota/shared_page.h"
#include "server/quota/turn_word.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

class GpuTurns {
 public:
  using Page = std::shared_ptr<quota::SharedPage<quota::SessionPage>>;

  // `tenants` must outlive this object.
  GpuTurns(asio::io_context& context, Tenants& tenants, const quota::Arbiter::Settings& settings);
  // Adds a session, before its worker may ask for a turn. `lane`: the partition whose sessions take turns
  // with this one (its tenant's name), or empty for the sessions without a partition.
  void add(uint64_t session, const std::string& tenant, const std::string& lane, Page page);
  // Removes a session whose worker has ended. Its turns are free at once.
  void remove(uint64_t session);
  // Reads the session's words after its worker reported a change.
  void read_page(uint64_t session);
  // Stops the timer.
  void stop();
  // For this process's next program (server/poold/upgrade). Restored sessions keep their turns, but not what
  // they and their tenants have used before. Call end_restoring() when all are restored.
  void save(uint64_t session, upgrade::Session& to) const;
  void restore(uint64_t session, const std::string& tenant, const upgrade::Session& from, Page page);
  void end_restoring();

 private:
  using Time = quota::Arbiter::Time;
  struct Session {
    std::string tenant;
    std::string lane;
    Page page;
    std::map<uint32_t, quota::TurnWord> words;  // last written, by GPU; only GPUs that the session has wanted
  };

  // A GPU, or a partition of it, that sessions use one after the other.
  struct GpuLane {
    uint32_t gpu = 0;
    std::string lane;
    auto operator<=>(const GpuLane&) const = default;
  };

  quota::Arbiter& arbiter(const GpuLane& gpu_lane);
  static Time used(const Session& session, uint32_t gpu);  // as its worker says
  void read(uint64_t number, Session& session, uint32_t gpu, Time now);
  void write(const GpuLane& gpu_lane, const quota::Arbiter& its);
  void write_all();
  void set_timer();

  asio::steady_timer timer_;
  Tenants& tenants_;
  const quota::Arbiter::Settings settings_;
  std::map<std::string, quota::Quota> quotas_;  // by tenant
  std::map<GpuLane, quota::Arbiter> arbiters_;
  std::map<uint64_t, Session> sessions_;
  bool stopped_ = false;
};

}  // namespace gpupool::server
