// Fuzzes a session over the fake driver with everything that a client may send after the hello. The input is
// a sequence of commands {u16 id, u8 flags, u16 length, body}. The fuzzer adds the sequence number and the
// header's layout, which almost any mutation would break, so that inputs reach the handlers.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/server/worker/test_client.h"

using namespace gpupool;
using namespace gpupool::worker::test;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  testing::FakeDirectMemory direct;  // as over rdma, with stream memory operations
  TestClient client(false, nullptr, 0, false, &direct);
  client.retain();
  client.create_stream(0);
  client.map(0, 4 * FakeDriver::kGranularity);
  while (size >= 5) {
    uint16_t id = 0;
    uint16_t length = 0;
    std::memcpy(&id, data, 2);
    std::memcpy(&length, data + 3, 2);
    const bool wants_reply = (data[2] & 1) != 0;
    const bool cut = (data[2] & 2) != 0;
    data += 5;
    size -= 5;
    const size_t body = length < size ? length : size;
    const auto* const first = reinterpret_cast<const std::byte*>(data);
    if (cut) {  // the header announces more than follows
      wire::CommandHeader header;
      header.length = length;
      header.id = id;
      header.context = kContext;
      header.sequence = client.next_sequence;
      client.send_raw(&header, sizeof header);
      client.send_raw(first, body);
      break;
    }
    client.send(id, {first, first + body}, wants_reply);
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
