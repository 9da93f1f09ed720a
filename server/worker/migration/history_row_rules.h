// The effects of the call table's rows on the history (history.h). The roles of their parameters say which
// objects they make, name and destroy; tables in the source name the rows that do more. A row that is in none
// of the tables, and makes and destroys nothing, does not compile. Any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/wire/reader.h"
#include "server/worker/migration/history.h"

namespace gpupool::worker {

inline constexpr const char* kReferenceObstacle = "texture or surface references";

// False for rows that never change the history.
bool row_changes_history(uint16_t id);

// The effect of a row that was executed with success.
HistoryEffect effect_of_row(const wire::CommandHeader& header, std::span<const std::byte> body,
                            std::span<const std::byte> reply);

// The event that a row records; nullopt: it records none.
std::optional<uint64_t> recorded_event(uint16_t id, wire::Reader body);

}  // namespace gpupool::worker
