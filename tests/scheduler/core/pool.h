// Fixture for tests of the core: TestPool has a Core, a map as its store, and a clock. It applies the core's
// writes to the map and collects all other effects for the test. Throws std::runtime_error if a restore
// fails.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/text/gpu_uuid.h"
#include "protocol/lease/token.h"
#include "scheduler/core/core.h"
#include "scheduler/core/library_placer.h"
#include "tests/scheduler/core/first_fit.h"

namespace gpupool::scheduler {

constexpr uint64_t kGiB = uint64_t{1} << 30;

inline std::string boot_id(uint64_t number) {
  std::string id = "boot............";
  for (int i = 0; i < 8; ++i) id[8 + i] = static_cast<char>('a' + (number >> 4 * i & 15));
  return id;
}

inline std::string gpu_uuid(uint64_t node, uint64_t gpu) {
  std::string bytes(16, '\1');
  for (int i = 0; i < 7; ++i) bytes[i] = static_cast<char>(node >> 8 * i);
  bytes[15] = static_cast<char>(gpu);
  return gpu_uuid_text(bytes);
}

inline pool::Request ask(uint32_t gpus, uint32_t milli = 1000, uint64_t memory = 0) {
  pool::Request request;
  request.set_gpus(gpus);
  request.set_compute_milli(milli);
  request.set_memory_bytes(memory);
  request.set_priority(lease::NORMAL);
  return request;
}

inline pool::NodeReport first_report(uint64_t node, uint64_t boot, int gpus, uint64_t memory = 16 * kGiB) {
  pool::NodeReport report;
  pool::Inventory& inventory = *report.mutable_inventory();
  inventory.set_node("n" + std::to_string(node));
  inventory.set_boot(boot_id(boot));
  inventory.add_addresses("tcp://10.0.0." + std::to_string(node) + ":9700");
  for (int gpu = 0; gpu < gpus; ++gpu) {
    pool::Gpu& has = *inventory.add_gpus();
    has.set_uuid(gpu_uuid(node, static_cast<uint64_t>(gpu)));
    has.set_model("A100");
    has.set_memory_bytes(memory);
  }
  inventory.set_cpu_milli(16'000);
  inventory.set_host_memory_bytes(64 * kGiB);
  report.set_ready(true);
  return report;
}

struct TestPool {
  std::map<std::string, std::string> store;
  std::vector<ConfiguredTenant> tenants{{"a", {}}, {"b", {}}};
  Prices prices;
  uint64_t ids = 0;
  Stream streams = 0;
  Time now = 1'000'000;
  Time calendar = 0;  // the wall clock minus `now`
  bool real_placement = false;
  std::unique_ptr<Core> core;
  Effects published;  // all effects but writes, until the test clears them

  explicit TestPool(bool real_placement = false) : real_placement(real_placement) { start(); }

  // Creates a new core from the store, as after a crash.
  void start() {
    core = std::make_unique<Core>([this] { return next_id(); },
                                  [this](Nodes& nodes) { return make_placer(nodes); }, now);
    core->set_calendar(calendar);
    const auto good = core->restore({store.begin(), store.end()}, now);
    if (!good) throw std::runtime_error(good.error().message);
    core->configure(tenants, prices, now);
  }

  std::unique_ptr<Placer> make_placer(Nodes& nodes) const {
    if (real_placement) return std::make_unique<LibraryPlacer>();
    return std::make_unique<FirstFit>(nodes);
  }

  LeaseId next_id() {
    std::string id(16, '\0');
    ++ids;
    for (int i = 0; i < 8; ++i) id[i] = static_cast<char>(ids * 0x9e3779b97f4a7c15u >> 8 * i);
    for (int i = 0; i < 8; ++i) id[8 + i] = static_cast<char>(ids >> 8 * i);
    return id;
  }

  void write(const Effects& effects) {
    for (const Write& write : effects.writes) {
      if (write.value)
        store[write.key] = *write.value;
      else
        store.erase(write.key);
    }
  }

  void settle() {
    core->schedule(now);
    Effects more = core->take(now);
    write(more);
    for (auto& one : more.clients) published.clients.push_back(std::move(one));
    for (auto& one : more.nodes) published.nodes.push_back(std::move(one));
    for (auto& one : more.notes) published.notes.push_back(std::move(one));
  }
  void pass(Time time) {
    for (; time > 0; time -= std::min<Time>(time, 1000)) suspend_for(std::min<Time>(time, 1000));
  }
  // Advances the clock without ticks in between, as if the scheduler were suspended.
  void suspend_for(Time time) {
    now += time;
    core->tick(now);
    settle();
  }

  // The wall clock is set.
  void step_clock(Time step) {
    calendar += step;
    core->clock_stepped(step, now);
    settle();
  }

  Stream register_node(uint64_t node, uint64_t boot, int gpus, uint64_t memory = 16 * kGiB) {
    pool::NodeReport report = first_report(node, boot, gpus, memory);
    report.set_now_ms(now);
    core->register_node(++streams, report, now);
    settle();
    return streams;
  }
  // Sends a heartbeat of the node, with (lease, number of sessions) in `uses`.
  void report(Stream node, const std::vector<std::pair<LeaseId, uint32_t>>& uses = {}) {
    pool::NodeReport report;
    report.set_ready(true);
    report.set_now_ms(now);
    for (const auto& [id, sessions] : uses) {
      pool::LeaseUse& use = *report.add_leases();
      use.set_lease(id);
      use.set_sessions(sessions);
    }
    core->report(node, report, now);
    settle();
  }
  Stream request(const pool::Request& request, const std::string& tenant = "a",
                 std::optional<Time> arrived = {}) {
    core->request(++streams, tenant, request, arrived, now);
    settle();
    return streams;
  }

  // Returns the last message of type T to a client; null if there is none.
  template <class T>
  const T* last_message(Stream stream) const {
    const T* last = nullptr;
    for (const ClientMessage& one : published.clients) {
      if (one.stream == stream && std::holds_alternative<T>(one.message)) last = &std::get<T>(one.message);
    }
    return last;
  }
  const Grant* grant(Stream stream) const { return last_message<Grant>(stream); }
  // Returns the last orders to a node.
  pool::NodeOrders orders(Stream stream) const {
    pool::NodeOrders last;
    for (const NodeMessage& one : published.nodes) {
      if (one.stream == stream) last = one.orders;
    }
    return last;
  }
  // Formats the GPUs of a grant as "n1:0,1 n2:0".
  static std::string where(const Grant& grant) {
    std::string text;
    for (const GrantedServer& server : grant.servers) {
      text += (text.empty() ? "" : " ") + server.lease.node() + ":";
      for (int i = 0; i < server.lease.shares_size(); ++i) {
        const uint64_t node = std::stoull(server.lease.node().substr(1));
        for (uint64_t gpu = 0; gpu < 16; ++gpu) {
          if (server.lease.shares(i).gpu_uuid() == gpu_uuid(node, gpu))
            text += (i == 0 ? "" : ",") + std::to_string(gpu);
        }
      }
    }
    return text;
  }
  uint64_t leased_milli() const { return core->view_pool().compute_milli_leased(); }
  // Returns the number of notes of this event.
  size_t count(const std::string& event) const {
    return static_cast<size_t>(std::count_if(published.notes.begin(), published.notes.end(),
                                             [&](const Note& note) { return note.event == event; }));
  }
  // Returns the reason in the last note of this event.
  std::string reason_of(const std::string& event) const {
    std::string reason = "no such note";
    for (const Note& note : published.notes) {
      if (note.event != event) continue;
      for (const auto& [key, value] : note.fields) {
        if (std::string(key) == "reason") reason = value;
      }
    }
    return reason;
  }
};

// The client releases its lease, and the node reports that no session is left.
inline void finish(TestPool& pool, Stream holder, Stream node) {
  const LeaseId id = pool.grant(holder)->lease;
  pool.core->release(holder, pool.now);
  pool.settle();
  pool.report(node, {{id, 0}});
}

}  // namespace gpupool::scheduler
