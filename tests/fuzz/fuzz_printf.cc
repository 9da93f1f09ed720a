// Fuzzes a kernel's printf with arbitrary formats and arguments: the text must stay in its buffer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "server/softgpu/exec/faults.h"
#include "server/softgpu/exec/printf_format.h"
#include "server/softgpu/memory/address_space.h"
#include "tests/fuzz/input.h"

using namespace gpupool::softgpu;

namespace {

// Returns memory that kernels can read.
uint64_t device_memory() {
  if (!reserve_range() || !install_fault_handlers()) std::abort();
  const auto address = allocate_addresses(kGranule, kGranule, 0);
  static const auto memory = create_memory(kGranule, {});
  if (!address || !memory || !map_memory(memory, 0, *address, kGranule)) std::abort();
  return *address;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const uint64_t arguments = device_memory();
  gpupool::fuzz::Input input(data, size);
  const std::string packed = input.long_text();
  // Some at the end of the memory, so that the next argument cannot be read.
  const bool at_end = packed.size() % 4 == 3 && packed.size() < kGranule;
  const uint64_t first = at_end ? arguments + kGranule - (packed.size() + 1) : arguments;
  std::memcpy(reinterpret_cast<void*>(first), packed.data(), packed.size());
  const uint64_t capacity = input.get<uint8_t>();
  std::vector<char> text(capacity + 16, '\x5a');
  const auto formatted = format_device_text(text.data(), capacity, input.rest().c_str(), first);
  if (formatted.length > capacity || formatted.arguments > static_cast<int32_t>(kMaxPrintfArguments))
    std::abort();
  for (size_t i = capacity; i < text.size(); ++i) {
    if (text[i] != '\x5a') std::abort();
  }
  return 0;
}
