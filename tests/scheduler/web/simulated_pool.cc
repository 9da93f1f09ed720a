// simulated_pool ADDRESS NODES GPUS LEASES TENANT...: simulated poolds in racks of 16 that report use, and
// lease clients of the tenants, for the browser's test. Programs and labels have hostile names. Prints
// "ready" when all nodes are registered and all leases granted; the last request, for more GPUs than there
// can be free, waits in the queue. Ends at the end of its standard input.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/scheduler/service/clients.h"
#include "tests/support/processes.h"

namespace {

using namespace gpupool;
using namespace gpupool::testing;

constexpr int kNodesOfRack = 16, kNodesOfChannel = 30;

pool::AcquireCall hostile_call(const std::string& tenant, uint32_t gpus, uint32_t milli) {
  pool::AcquireCall call = request_call(gpus, milli);
  pool::Request& request = *call.mutable_request();
  request.set_tenant(tenant);
  request.set_program("<img src=x onerror=\"document.title='owned'\">'\"&amp;\xe2\x80\xae" +
                      std::string(900, 'p'));
  request.set_host("</script><script>document.title='owned'</script>");
  request.add_labels("job=<b onmouseover=alert(1)>");
  request.add_labels(std::string(128, 'l'));
  return call;
}

std::vector<std::unique_ptr<SimulatedPoold>> make_nodes(const std::string& address, int count, int gpus) {
  std::vector<std::unique_ptr<SimulatedPoold>> nodes;
  std::shared_ptr<grpc::Channel> channel;
  for (int i = 0; i < count; ++i) {
    if (i % kNodesOfChannel == 0) channel = connect(address);
    char name[16];
    std::snprintf(name, sizeof name, "gpu-%03d", i);
    nodes.push_back(std::make_unique<SimulatedPoold>(
        channel, SimulatedPoold::Has{.name = name,
                                     .number = static_cast<uint64_t>(i),
                                     .gpus = gpus,
                                     .rack = "r" + std::to_string(i / kNodesOfRack),
                                     .reports_use = true}));
    nodes.back()->send_heartbeat();
  }
  return nodes;
}

}  // namespace

int main(int count, char** words) {
  if (count < 6) return 2;
  const std::string address = words[1];
  const int gpus = std::atoi(words[3]);
  const auto nodes = make_nodes(address, std::atoi(words[2]), gpus);
  std::atomic<bool> ended = false;
  std::thread heartbeats([&] {
    while (!ended) {
      for (const auto& node : nodes) node->send_heartbeat();
      for (int i = 0; i < 20 && !ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  bool good = eventually([&] {
    return std::all_of(nodes.begin(), nodes.end(), [](const auto& node) { return node->is_registered(); });
  });
  const auto channel = connect(address);
  std::vector<std::unique_ptr<LeaseClient>> clients;
  for (int i = 0; good && i < std::atoi(words[4]); ++i) {
    const std::string tenant = words[5 + i % (count - 5)];
    const bool is_whole = i % 3 != 0;
    clients.push_back(std::make_unique<LeaseClient>(
        channel, hostile_call(tenant, is_whole ? 4 : 1, is_whole ? 1000 : 300)));
    good = clients.back()->granted() != nullptr;
  }
  if (good) {
    const auto all = static_cast<uint32_t>(nodes.size()) * static_cast<uint32_t>(gpus);
    clients.push_back(std::make_unique<LeaseClient>(channel, hostile_call(words[5], all, 1000)));
    good = clients.back()->queued(1) != nullptr;
  }
  std::puts(good ? "ready" : "failed");
  std::fflush(stdout);
  while (good && std::getchar() != EOF) {
  }
  clients.clear();
  ended = true;
  heartbeats.join();
  return good ? 0 : 1;
}
