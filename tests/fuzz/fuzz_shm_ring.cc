// Fuzzes a ring in memory that a hostile process writes: invalid indices must end the stream, and nothing may
// be read or written outside the ring and the caller's buffers.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "protocol/transport/shm/ring.h"
#include "tests/fuzz/input.h"

using namespace gpupool::transport::shm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kCapacity = 256;
  gpupool::fuzz::Input input(data, size);
  RingControl control{};
  std::vector<std::byte> memory(kCapacity);  // sanitizers detect accesses outside it
  RingWriter writer(control, memory.data(), kCapacity);
  RingReader reader(control, memory.data(), kCapacity);
  uint64_t written = 0, read = 0;
  bool honest = true;
  while (!input.empty()) {
    switch (input.below(6)) {
      case 0: {
        std::vector<std::byte> first(input.get<uint8_t>()), second(input.get<uint8_t>());
        for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<std::byte>(written + i);
        for (size_t i = 0; i < second.size(); ++i)
          second[i] = static_cast<std::byte>(written + first.size() + i);
        const iovec parts[] = {{first.data(), first.size()}, {second.data(), second.size()}};
        const auto count = writer.write(parts, [] {});
        if (!count && honest) std::abort();
        if (count && (*count > first.size() + second.size() || *count > kCapacity)) std::abort();
        written += count.value_or(0);
        break;
      }
      case 1: {
        std::vector<std::byte> buffer(input.get<uint16_t>() % 1024);
        const auto count = reader.read(buffer, [] {});
        if (!count && honest) std::abort();
        if (count && *count > buffer.size()) std::abort();
        for (size_t i = 0; honest && i < count.value_or(0); ++i) {
          if (buffer[i] != static_cast<std::byte>(read + i)) std::abort();
        }
        read += count.value_or(0);
        break;
      }
      case 2: control.written = input.get<uint64_t>(), honest = false; break;
      case 3: control.read = input.get<uint64_t>(), honest = false; break;
      case 4:
        control.reader_sleeps = input.get<uint8_t>(), control.writer_sleeps = input.get<uint8_t>();
        break;
      default: memory[input.get<uint8_t>()] = input.get<std::byte>(), honest = false;
    }
  }
  return 0;
}
