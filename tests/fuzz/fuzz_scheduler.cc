// Fuzzes the scheduler's core with messages of lease clients and nodes in any order, and with crashes: no GPU
// may be granted twice, and the stored state must be restorable.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tests/fuzz/input.h"
#include "tests/fuzz/quiet_protobuf.h"
#include "tests/scheduler/core/pool.h"

using namespace gpupool;
using namespace gpupool::scheduler;

namespace {

class Game {
 public:
  explicit Game(fuzz::Input input) : input_(input) {}

  void play() {
    for (int steps = 0; !input_.empty() && steps < 200; ++steps) {
      step();
      pool_.settle();
      check();
    }
    pool_.pass(10'000);
    pool_.start();  // throws if the store cannot be restored
  }

 private:
  Stream some_stream() {
    return pool_.streams == 0 ? 0 : 1 + input_.below(static_cast<uint32_t>(pool_.streams));
  }
  std::string some_lease() {
    const auto& leases = pool_.core->view_pool().leases();
    if (leases == 0 || input_.below(4) == 0) return input_.text();
    google::protobuf::RepeatedPtrField<pool::LeaseState> all;
    pool_.core->view_leases(all);
    return all.Get(static_cast<int>(input_.below(static_cast<uint32_t>(all.size())))).id();
  }
  template <class Message>
  Message parsed() {
    Message message;
    return message.ParseFromString(input_.long_text()) ? message
                                                       : Message();  // gRPC passes on valid messages only
  }

  void step() {
    Core& core = *pool_.core;
    const Time now = pool_.now;
    switch (input_.below(16)) {
      case 0:
      case 1: {
        pool::Request request =
            ask(input_.below(6), input_.below(4) == 0 ? input_.get<uint16_t>() : 250 * (1 + input_.below(4)),
                input_.get<uint8_t>() * kGiB / 4);
        request.set_priority(static_cast<lease::Priority>(input_.below(4)));
        request.set_one_host(input_.below(2));
        if (input_.below(4) == 0) request.add_apart_from("x"), request.add_labels("x");
        return core.request(++pool_.streams, input_.below(2) ? "a" : "b", request, {}, now);
      }
      case 2: return core.request(++pool_.streams, "a", parsed<pool::Request>(), {}, now);
      case 3: return core.resume(++pool_.streams, input_.below(2) ? "a" : "", LeaseId(input_.text()), now);
      case 4: return core.release(some_stream(), now);
      case 5: return core.client_disconnected(some_stream(), now);
      case 6:
      case 7: {
        const uint64_t node = 1 + input_.below(3);
        return core.register_node(
            ++pool_.streams, first_report(node, input_.below(4), static_cast<int>(1 + input_.below(4))), now);
      }
      case 8: return core.register_node(++pool_.streams, parsed<pool::NodeReport>(), now);
      case 9: {
        pool::NodeReport report = parsed<pool::NodeReport>();
        report.set_ready(input_.below(4) != 0);
        return core.report(some_stream(), report, now);
      }
      case 10: return core.node_disconnected(some_stream(), now);
      case 11: pool_.now += input_.get<uint16_t>(); return core.tick(pool_.now);
      case 12: return pool_.start();  // as after a crash
      case 13:
        static_cast<void>(core.drain("n" + std::to_string(1 + input_.below(3)), "because", input_.below(2),
                                     {}, now, input_.below(2)));
        return;
      case 14: static_cast<void>(core.evict(some_lease(), "", {}, now)); return;
      default: operate();
    }
  }
  void operate() {
    Core& core = *pool_.core;
    const std::string node = "n" + std::to_string(1 + input_.below(3));
    switch (input_.below(8)) {
      case 0: static_cast<void>(core.undrain(node, pool_.now)); return;
      case 1: static_cast<void>(core.remove_node(node, pool_.now)); return;
      case 2: static_cast<void>(core.set_quota("a", parsed<pool::TenantQuota>(), pool_.now)); return;
      case 3: static_cast<void>(core.set_policy(parsed<pool::Policy>(), pool_.now)); return;
      case 4: static_cast<void>(core.why(some_lease(), pool_.now)); return;
      case 5:
      case 6: static_cast<void>(core.move(some_lease(), "", input_.below(2) ? node : "", pool_.now)); return;
      default: static_cast<void>(core.clear_quota("a", pool_.now)); return;
    }
  }

  // The leases of a GPU together must not exceed it.
  void check() const {
    google::protobuf::RepeatedPtrField<pool::NodeState> nodes;
    pool_.core->view_nodes(nodes);
    for (const pool::NodeState& node : nodes) {
      for (const pool::PoolGpu& gpu : node.gpus()) {
        if (gpu.compute_milli_leased() > kWholeGpu || gpu.memory_bytes_leased() > gpu.memory_bytes())
          std::abort();
      }
    }
    google::protobuf::RepeatedPtrField<pool::Waiting> queue;
    pool_.core->view_queue(queue);
  }

  fuzz::Input input_;
  TestPool pool_{true};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gpupool::fuzz::quiet_protobuf();
  Game({data, size}).play();
  return 0;
}
