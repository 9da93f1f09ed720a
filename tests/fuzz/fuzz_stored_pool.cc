// Fuzzes the start of a scheduler with arbitrary entries in its store: it must reject invalid entries with an
// error and not crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "scheduler/core/core.h"
#include "scheduler/core/library_placer.h"
#include "scheduler/core/records.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/quiet_protobuf.h"
#include "tests/scheduler/core/first_fit.h"

using namespace gpupool;
using namespace gpupool::scheduler;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gpupool::fuzz::quiet_protobuf();
  fuzz::Input input(data, size);
  std::vector<std::pair<std::string, std::string>> stored;
  while (!input.empty()) {
    switch (input.below(6)) {
      case 0: stored.emplace_back(lease_key(input.text()), input.long_text()); break;
      case 1: stored.emplace_back(node_key(input.text()), input.long_text()); break;
      case 2: stored.emplace_back(kQuotaPrefix + input.text(), input.long_text()); break;
      case 3: stored.emplace_back(kPolicyKey, input.long_text()); break;
      case 4: stored.emplace_back(kLeasePrefix + input.text(), input.long_text()); break;
      default: stored.emplace_back(input.text(), input.long_text());
    }
  }
  uint8_t ids = 0;
  const auto next_id = [&] { return LeaseId(16, static_cast<char>(++ids)); };
  // The product's placer takes much longer to create than a store to be rejected.
  Core first(
      next_id, [](Nodes& nodes) { return std::make_unique<FirstFit>(nodes); }, 1'000'000);
  const auto accepted = first.restore(stored, 1'000'000);
  if (!accepted) {
    if (accepted.error().message.empty()) std::abort();
    return 0;
  }
  if (stored.empty()) return 0;
  Core core(
      next_id, [](Nodes&) { return std::make_unique<LibraryPlacer>(); }, 1'000'000);
  if (const auto restored = core.restore(stored, 1'000'000); !restored) {  // an unknown policy
    if (restored.error().message.empty()) std::abort();
    return 0;
  }
  core.configure({{"a", {}}}, {}, 1'000'000);
  for (Time now = 1'000'000; now <= 1'100'000; now += 20'000) {
    core.tick(now);
    core.schedule(now);
    static_cast<void>(core.take(now));
  }
  static_cast<void>(core.view_pool());
  return 0;
}
