// Fuzzes the description of GPUs that a server sends to the NVML library: a hostile server must cause no more
// than an error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "protocol/control/monitor.pb.h"
#include "protocol/control/monitor_codec.h"
#include "tests/fuzz/quiet_protobuf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gpupool::fuzz::quiet_protobuf();
  using namespace gpupool;
  const auto state = monitor::decode_state({reinterpret_cast<const char*>(data), size});
  control::MonitorState proto;
  const bool read = proto.ParseFromArray(data, static_cast<int>(size));
  if (!state) {
    if (state.error().message.empty()) std::abort();
    return 0;
  }
  if (!read) return 0;  // libprotobuf is slightly stricter
  if (state->gpus.size() != static_cast<size_t>(proto.gpus_size()) ||
      state->sessions.size() != static_cast<size_t>(proto.sessions_size()))
    std::abort();
  for (size_t i = 0; i < state->gpus.size(); ++i) {
    const auto& ours = state->gpus[i];
    const auto& theirs = proto.gpus(static_cast<int>(i));
    if (ours.total_bytes != theirs.total_bytes() || ours.used_bytes != theirs.used_bytes() ||
        ours.sensors.has_value() != theirs.has_sensors())
      std::abort();
  }
  for (size_t i = 0; i < state->sessions.size(); ++i) {
    if (state->sessions[i].pid != proto.sessions(static_cast<int>(i)).pid()) std::abort();
  }
  return 0;
}
