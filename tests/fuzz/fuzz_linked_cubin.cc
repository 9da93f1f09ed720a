// Fuzzes cubins that claim to be the output of softgpu's linker: their texts must be inside the input, and
// must be equal after the linker writes them again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "protocol/images/linked_cubin.h"

namespace cuda = gpupool::cuda;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const cuda::ByteSpan elf(reinterpret_cast<const std::byte*>(data), size);
  std::vector<std::string> texts;
  const char* const begin = reinterpret_cast<const char*>(data);
  for (const std::string_view text : cuda::texts_of_linked_cubin(elf)) {
    if (text.data() < begin || text.data() + text.size() > begin + size) std::abort();
    texts.emplace_back(text);
  }
  if (texts.empty()) texts = {std::string(begin, size), "second"};
  const std::string made = cuda::make_linked_cubin(texts, 90);
  const auto again =
      cuda::texts_of_linked_cubin({reinterpret_cast<const std::byte*>(made.data()), made.size()});
  for (size_t i = 0; i < again.size(); ++i) {
    if (again[i] != texts[i]) std::abort();
  }
  if (again.size() != texts.size() && !texts[0].empty()) std::abort();
  return 0;
}
