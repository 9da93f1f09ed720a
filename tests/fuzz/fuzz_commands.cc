// Fuzzes a session over the fake driver with everything that a client may send after the hello. The input is
// a sequence of commands {u16 id, u8 flags, u16 length, body}; with kOtherContext the context's handle comes
// before the body. The fuzzer adds the sequence number and the header's layout, which almost any mutation
// would break, so that inputs reach the handlers.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/server/worker/test_client.h"

using namespace gpupool;
using namespace gpupool::worker::test;

namespace {

// Flags of commands.
constexpr uint8_t kWantsReply = 1;
constexpr uint8_t kCut = 2;  // the header announces more than follows
constexpr uint8_t kOtherContext = 4;
constexpr uint8_t kGivesMemory = 8;  // a descriptor of memory comes with the command, as over shared memory

int memory_file() {
  const int file = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, 64 * 1024) != 0) std::abort();
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  testing::FakeDirectMemory direct;  // as over rdma, with stream memory operations
  TestClient client(false, nullptr, 0, true, &direct);
  client.retain();
  client.create_stream(0);
  client.map(0, 4 * FakeDriver::kGranularity);
  while (size >= 5) {
    uint16_t id = 0;
    uint16_t length = 0;
    std::memcpy(&id, data, 2);
    std::memcpy(&length, data + 3, 2);
    const uint8_t flags = data[2];
    uint64_t context = kContext;
    data += 5;
    size -= 5;
    if ((flags & kOtherContext) != 0 && size >= sizeof context) {
      std::memcpy(&context, data, sizeof context);
      data += sizeof context;
      size -= sizeof context;
    }
    if ((flags & kGivesMemory) != 0) client.give_descriptor(memory_file());
    const size_t body = length < size ? length : size;
    const auto* const first = reinterpret_cast<const std::byte*>(data);
    if ((flags & kCut) != 0) {
      wire::CommandHeader header;
      header.length = length;
      header.id = id;
      header.context = context;
      header.sequence = client.next_sequence;
      client.send_raw(&header, sizeof header);
      client.send_raw(first, body);
      break;
    }
    client.send(id, {first, first + body}, (flags & kWantsReply) != 0, context);
    data += body;
    size -= body;
  }
  client.finish();
  // The session must have freed everything, whatever it received.
  if (direct.regions() != 0 || direct.misused()) std::abort();
  if (!client.fake.contexts.empty() || !client.fake.events.empty() || !client.fake.pinned.empty() ||
      !client.fake.physical.empty() || !client.fake.graphs.empty() || !client.fake.executables.empty() ||
      !client.fake.arrays.empty() || !client.fake.textures.empty() || client.fake.misused != 0) {
    std::abort();
  }
  return 0;
}
