// What each command means for the history: which objects it makes, names, configures and destroys. Rows of
// the call table say it by the roles of their parameters, except settings; commands by the cases in the
// source.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "server/worker/migration/history.h"

namespace gpupool::worker {

// Rows of event.def.
constexpr uint16_t kEventRecord = 0x0402, kEventRecordWithFlags = 0x0403;

// False for commands that never change the history, such as launches and copies. Any thread.
bool changes_history(uint16_t command);

// The effect of a command that was executed with success. `body` was checked by its handler.
// `context_remains`: of a command that releases or resets a primary context: whether it still exists.
HistoryEffect effect_of(const wire::CommandHeader& header, std::span<const std::byte> body,
                        bool context_remains);

}  // namespace gpupool::worker
