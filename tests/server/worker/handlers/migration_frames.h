// A frame of each command about migrations, and of read_clock, for hostile_test.cc. The last one ends the
// session.
#pragma once
#include <limits>
#include <utility>
#include <vector>

#include "protocol/wire/images.h"
#include "protocol/wire/migration.h"
#include "protocol/wire/timeline.h"
#include "tests/server/worker/test_client.h"

namespace gpupool::worker::test {

inline std::vector<std::pair<uint16_t, wire::Buffer>> migration_frames(uint64_t module) {
  using wire::Command;
  const auto named = [](const auto& body, std::string_view name) {
    wire::Buffer bytes = bytes_of(body);
    wire::Writer(bytes).put_text(name);
    return bytes;
  };
  const auto id = [](Command command) { return static_cast<uint16_t>(command); };
  wire::PeerTarget adopting{}, file{};
  adopting.copy = file.copy = 1;
  adopting.port = 9700;
  auto fill = named(wire::FillVariable{module, 0, sizeof(uint64_t)}, "variable");
  wire::Writer(fill).put(uint64_t{0});
  auto part = bytes_of(wire::FillArray{cuda::make_handle(cuda::Kind::array, 1, 600), 0, 0, 0, 0, 0, 4, 1, 1});
  wire::Writer(part).put(uint32_t{0});
  return {{id(Command::read_clock), bytes_of(wire::ReadClock{wire::kFlushTimeline, 0})},
          {id(Command::adopt_session), {}},
          {id(Command::begin_migration), bytes_of(wire::BeginMigration{file})},
          {id(Command::begin_migration), bytes_of(wire::BeginMigration{adopting})},
          {id(Command::migrate_session), bytes_of(wire::MigrateSession{0, 0})},
          {id(Command::fill_variable), fill},
          {id(Command::fill_array), part},
          {id(Command::fill_memory),
           bytes_of(wire::FillMemory{cuda::make_handle(cuda::Kind::memory, 1, 700), 0, 0}, uint64_t{0})},
          {id(Command::place_variable), named(wire::PlaceVariable{1 << 20}, "variable")},
          {id(Command::end_migration), named(wire::EndMigration{}, "reason")},
          {id(Command::goodbye), {}}};
}

// The size of a body from which on it has bytes whose number the command does not say.
inline size_t bytes_before_parts(uint16_t id) {
  if (id == static_cast<uint16_t>(wire::Command::upload_part)) return sizeof(wire::UploadPart);
  if (id == static_cast<uint16_t>(wire::Command::fill_memory)) return sizeof(wire::FillMemory);
  return std::numeric_limits<size_t>::max();
}

}  // namespace gpupool::worker::test
