// A long list of driver calls with good and bad arguments. Prints every result; parity_test.cc runs it on softgpu
// directly and through poold and compares.
#include <cstdlib>
#include <cstring>

#include "tests/parity/show.h"

using namespace parity;

namespace {

struct Part {
  const char* name;
  void (*run)();
  bool context;  // needs a current one
};
constexpr Part kParts[] = {
    {"before_initialising", before_initialising, false},
    {"devices", devices, false},
    {"contexts", contexts, false},
    {"device_memory", device_memory, true},
    {"host_memory", host_memory, true},
    {"managed_memory", managed_memory, true},
    {"streams", streams, true},
    {"events", events, true},
    {"graphs", graphs, true},
    {"conditional_graphs", conditional_graphs, true},
    {"modules", modules, true},
    {"libraries", libraries, true},
    {"linking", linking, true},
    {"virtual_memory", virtual_memory, true},
    {"memory_pools", memory_pools, true},
    {"small_calls", small_calls, true},
    {"arrays", arrays, true},
    {"more_calls", more_calls, true},
    {"green_contexts", green_contexts, true},
    {"destroyed_things", destroyed_things, false},
    {"without_a_context", without_a_context, true},
    {"sticky_errors", sticky_errors, true},
};

}  // namespace

int main(int count, char** words) {
  for (const Part& part : kParts) {
    if (count != 2 || std::strcmp(words[1], part.name)) continue;
    if (part.context) {
      CUcontext context = nullptr;
      if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return EXIT_FAILURE;
    }
    part.run();
    return EXIT_SUCCESS;
  }
  std::fprintf(stderr, "usage: %s PART\n", words[0]);
  return 2;
}
