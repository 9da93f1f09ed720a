// The effect of each command on the history: which objects it makes, names, configures and destroys. For rows
// of the call table: history_row_rules.h; for other commands: the lists and cases in the source. A command
// that is in none of the lists does not compile.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "server/worker/migration/history.h"

namespace gpupool::worker {

// False for commands that never change the history, such as launches and copies. Any thread.
bool changes_history(uint16_t command);

// The effect of a command that was executed with success. `body` was checked by its handler.
// `context_remains`: of a command that releases or resets a primary context: whether it still exists.
HistoryEffect effect_of(const wire::CommandHeader& header, std::span<const std::byte> body,
                        std::span<const std::byte> reply, bool context_remains);

}  // namespace gpupool::worker
