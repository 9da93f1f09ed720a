// Fuzzes the part of a session's dump that comes from its worker: the result must be bounded and printable.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "server/poold/admin/worker_dump.h"
#include "tests/fuzz/quiet_protobuf.h"

using namespace gpupool::server;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gpupool::fuzz::quiet_protobuf();
  const auto dump = read_worker_dump(std::string(reinterpret_cast<const char*>(data), size));
  if (!dump) {
    if (dump.error().message.empty()) std::abort();
    return 0;
  }
  constexpr size_t kMostBytes = 4 << 20;  // gRPC's limit for the response that carries the dump
  const std::string bytes = dump->SerializeAsString();
  if (bytes.size() > kMostBytes) std::abort();
  const auto again = read_worker_dump(bytes);
  if (!again || again->SerializeAsString() != bytes) std::abort();
  return 0;
}
