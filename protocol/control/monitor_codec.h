// MonitorState for the client libraries (libnvidia-ml.so.1, pool-smi): plain structs, read with protozero as
// in hello_codec.h. Header-only, no state, any thread. No exceptions leave this file: bytes that do not parse
// are ErrorCode::malformed.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/control/hello_codec.h"
#include "protocol/wire/frame.h"

namespace gpupool::monitor {

struct Sensors {
  std::optional<uint32_t> temperature, memory_temperature, power_milliwatts, power_limit_milliwatts;
  std::optional<uint64_t> energy_millijoules;
  std::optional<uint32_t> fan_percent, graphics_mhz, sm_mhz, memory_mhz, video_mhz, performance_state;
  std::optional<uint64_t> ecc_corrected, ecc_uncorrected;
};

struct Gpu {
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t gpu_nanoseconds = 0;
  std::optional<Sensors> sensors;
};

struct Use {
  uint32_t gpu = 0;
  uint64_t memory_bytes = 0;
  uint64_t gpu_nanoseconds = 0;
};

struct Session {
  uint64_t number = 0;
  int64_t pid = 0;
  std::vector<Use> uses;
};

struct State {
  int64_t taken_ns = 0;
  std::vector<Gpu> gpus;
  std::vector<Session> sessions;
};

namespace detail {

using hello::detail::bytes;
using hello::detail::each_field;
using hello::detail::varint;

inline void read_sensors(protozero::pbf_reader in, Sensors& sensors) {
  each_field(in, [&](uint32_t field) {
    switch (field) {
      case varint(1): sensors.temperature = in.get_uint32(); return true;
      case varint(2): sensors.memory_temperature = in.get_uint32(); return true;
      case varint(3): sensors.power_milliwatts = in.get_uint32(); return true;
      case varint(4): sensors.power_limit_milliwatts = in.get_uint32(); return true;
      case varint(5): sensors.energy_millijoules = in.get_uint64(); return true;
      case varint(6): sensors.fan_percent = in.get_uint32(); return true;
      case varint(7): sensors.graphics_mhz = in.get_uint32(); return true;
      case varint(8): sensors.sm_mhz = in.get_uint32(); return true;
      case varint(9): sensors.memory_mhz = in.get_uint32(); return true;
      case varint(10): sensors.video_mhz = in.get_uint32(); return true;
      case varint(11): sensors.performance_state = in.get_uint32(); return true;
      case varint(12): sensors.ecc_corrected = in.get_uint64(); return true;
      case varint(13): sensors.ecc_uncorrected = in.get_uint64(); return true;
      default: return false;
    }
  });
}

inline Gpu read_gpu(protozero::pbf_reader in) {
  Gpu gpu;
  each_field(in, [&](uint32_t field) {
    switch (field) {
      case varint(1): gpu.total_bytes = in.get_uint64(); return true;
      case varint(2): gpu.used_bytes = in.get_uint64(); return true;
      case varint(3): gpu.free_bytes = in.get_uint64(); return true;
      case varint(4): gpu.gpu_nanoseconds = in.get_uint64(); return true;
      case bytes(5):
        if (!gpu.sensors) gpu.sensors.emplace();
        read_sensors(in.get_message(), *gpu.sensors);
        return true;
      default: return false;
    }
  });
  return gpu;
}

inline Use read_use(protozero::pbf_reader in) {
  Use use;
  each_field(in, [&](uint32_t field) {
    switch (field) {
      case varint(1): use.gpu = in.get_uint32(); return true;
      case varint(2): use.memory_bytes = in.get_uint64(); return true;
      case varint(3): use.gpu_nanoseconds = in.get_uint64(); return true;
      default: return false;
    }
  });
  return use;
}

inline Session read_session(protozero::pbf_reader in) {
  Session session;
  each_field(in, [&](uint32_t field) {
    switch (field) {
      case varint(1): session.number = in.get_uint64(); return true;
      case varint(2): session.pid = in.get_int64(); return true;
      case bytes(3):
        if (session.uses.size() == hello::kMaxDevices) throw std::length_error("too many uses");
        session.uses.push_back(read_use(in.get_message()));
        return true;
      default: return false;
    }
  });
  return session;
}

inline void read_state(protozero::pbf_reader in, State& state) {
  each_field(in, [&](uint32_t field) {
    switch (field) {
      case varint(1): state.taken_ns = in.get_int64(); return true;
      case bytes(2):
        if (state.gpus.size() == hello::kMaxDevices) throw std::length_error("too many GPUs");
        state.gpus.push_back(read_gpu(in.get_message()));
        return true;
      case bytes(3):
        if (state.sessions.size() == wire::kMostMonitoredSessions)
          throw std::length_error("too many sessions");
        state.sessions.push_back(read_session(in.get_message()));
        return true;
      default: return false;
    }
  });
}

}  // namespace detail

inline Result<State> decode_state(std::string_view encoded) {
  return hello::detail::decode<State>(encoded, detail::read_state, "MonitorState");
}

}  // namespace gpupool::monitor
