// Tests that the client (protozero) decodes poold's monitor messages (libprotobuf), including truncated and
// damaged ones.
#include "protocol/control/monitor_codec.h"

#include <random>

#include "protocol/control/monitor.pb.h"
#include "tests/support/catch.h"

using namespace gpupool;

namespace {

control::MonitorState sample() {
  control::MonitorState state;
  state.set_taken_ns(1ll << 50);
  for (uint64_t i = 0; i < 3; ++i) {
    control::MonitoredGpu& gpu = *state.add_gpus();
    gpu.set_total_bytes(80ull << 30);
    gpu.set_used_bytes(i << 30);
    gpu.set_free_bytes(70ull << 30);
    gpu.set_gpu_nanoseconds(1ull << 60);
    if (i == 0) continue;
    control::Sensors& sensors = *gpu.mutable_sensors();
    sensors.set_temperature(40);
    sensors.set_memory_temperature(0);
    sensors.set_power_milliwatts(350'000);
    sensors.set_power_limit_milliwatts(700'000);
    sensors.set_energy_millijoules(1ull << 40);
    if (i == 1) continue;
    sensors.set_fan_percent(30);
    sensors.set_graphics_mhz(1980);
    sensors.set_sm_mhz(1981);
    sensors.set_memory_mhz(2619);
    sensors.set_video_mhz(1545);
    sensors.set_performance_state(0);
    sensors.set_ecc_corrected(1);
    sensors.set_ecc_uncorrected(0);
  }
  for (uint64_t i = 0; i < 5; ++i) {
    control::MonitoredSession& session = *state.add_sessions();
    session.set_number(i + 1);
    session.set_pid(static_cast<int64_t>(i) * 1000);
    for (uint32_t gpu = 0; gpu < i; ++gpu) {
      control::MonitoredUse& use = *session.add_uses();
      use.set_gpu(gpu);
      use.set_memory_bytes(i << 20);
      use.set_gpu_nanoseconds(i);
    }
  }
  return state;
}

}  // namespace

TEST_CASE("a watcher reads what poold wrote") {
  const auto state = monitor::decode_state(sample().SerializeAsString());
  REQUIRE(state);
  CHECK(state->taken_ns == 1ll << 50);
  REQUIRE(state->gpus.size() == 3);
  CHECK(state->gpus[2].total_bytes == 80ull << 30);
  CHECK(state->gpus[2].used_bytes == 2ull << 30);
  CHECK(state->gpus[2].free_bytes == 70ull << 30);
  CHECK(state->gpus[2].gpu_nanoseconds == 1ull << 60);
  CHECK_FALSE(state->gpus[0].sensors);
  const monitor::Sensors& some = *state->gpus[1].sensors;
  CHECK(some.temperature == 40u);
  CHECK(some.memory_temperature == 0u);  // known, with the value 0
  CHECK_FALSE(some.fan_percent);
  const monitor::Sensors& all = *state->gpus[2].sensors;
  CHECK(all.power_milliwatts == 350'000u);
  CHECK(all.power_limit_milliwatts == 700'000u);
  CHECK(all.energy_millijoules == 1ull << 40);
  CHECK(all.fan_percent == 30u);
  CHECK(all.graphics_mhz == 1980u);
  CHECK(all.sm_mhz == 1981u);
  CHECK(all.memory_mhz == 2619u);
  CHECK(all.video_mhz == 1545u);
  CHECK(all.performance_state == 0u);
  CHECK(all.ecc_corrected == 1u);
  CHECK(all.ecc_uncorrected == 0u);
  REQUIRE(state->sessions.size() == 5);
  CHECK(state->sessions[4].number == 5);
  CHECK(state->sessions[4].pid == 4000);
  REQUIRE(state->sessions[4].uses.size() == 4);
  CHECK(state->sessions[4].uses[3].gpu == 3);
  CHECK(state->sessions[4].uses[3].memory_bytes == 4u << 20);
  CHECK(state->sessions[4].uses[3].gpu_nanoseconds == 4);
}

TEST_CASE("cut and damaged states are read or refused and never more") {
  const std::string bytes = sample().SerializeAsString();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const std::string part = bytes.substr(0, length);
    CHECK(control::MonitorState().ParseFromString(part) == static_cast<bool>(monitor::decode_state(part)));
  }
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = bytes;
    for (int change = 0; change < 3; ++change)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    const auto state = monitor::decode_state(damaged);
    if (!state) CHECK(state.error().code == ErrorCode::malformed);
  }
  control::MonitorState many;
  for (uint32_t i = 0; i <= wire::kMostMonitoredSessions; ++i) many.add_sessions();
  CHECK_FALSE(monitor::decode_state(many.SerializeAsString()));
}
