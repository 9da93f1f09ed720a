// Several servers in one program: their devices are numbered through, work together as those of one machine do, and fail
// apart from each other.
#include <signal.h>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const Environment kOneDevice{{"SOFTGPU_MEMORY", "128MiB"}};
const Environment kTwoDevices{{"SOFTGPU_MEMORY", "128MiB"}, {"SOFTGPU_DEVICES", "2"}};

std::string both(const Pool& one, const Pool& other) {
  return const_cast<Pool&>(one).poold().url() + "," + const_cast<Pool&>(other).poold().url();
}

// On one softgpu with two devices, through one poold, through two: the same.
void passes_everywhere(const std::string& scenario, const Environment& environment = {}) {
  Pool both_devices(kTwoDevices), first(kOneDevice), second(kOneDevice);
  const std::vector<std::string> words{driver_app(), scenario};
  const Finished direct = run_patiently(words, both_devices.directly(environment));
  INFO("directly: " << direct.output);
  CHECK(direct.status == 0);
  const Finished one = run_patiently(words, both_devices.through(environment));
  INFO("through one poold: " << one.output);
  CHECK(one.status == 0);
  CHECK(one.output == direct.output);
  Environment several = environment;
  several["GPUPOOL"] = both(first, second);
  const Finished two = run_patiently(words, first.through(several));
  INFO("through two poolds: " << two.output);
  CHECK(two.status == 0);
  CHECK(two.output == direct.output);
}

}  // namespace

#define PASSES(scenario) \
  TEST_CASE(#scenario) { passes_everywhere(#scenario); }

PASSES(devices_numbered_through)
PASSES(kernels_on_two_devices)
PASSES(what_belongs_to_another_device)
PASSES(copies_between_devices)
PASSES(boxes_between_devices)
PASSES(a_chain_over_two_devices)
PASSES(host_functions_between_devices)
PASSES(events_between_devices)
PASSES(a_library_on_two_devices)
PASSES(threads_on_two_devices)

TEST_CASE("two servers, every call waits") {
  for (const char* scenario : {"copies_between_devices", "a_chain_over_two_devices"}) {
    passes_everywhere(scenario, {{"GPUPOOL_SYNC", "1"}});
  }
}
