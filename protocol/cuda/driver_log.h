// What a driver library says of errors, kept for the program (cuLogs...): the last of it, as lines. Any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/cuda/cuda_header.h"

namespace gpupool::cuda {

enum class Severity { error = 0, warning = 1 };  // CUlogLevel

// A line without its end. Calls what the program has registered.
void log_for_program(Severity severity, std::string_view text);

namespace driver_log {

constexpr size_t kMostBytes = 25'600;  // that are kept

using Listener = void (*)(void* data, int level, char* message, size_t length);
// Null: no memory is left.
void* add_listener(Listener listener, void* data);
// Returns when no call of it is under way, but for the caller's own. False: there is none such.
bool remove_listener(void* handle);

// The number of the next line.
uint32_t next();
// The lines from number `from` on that are still there; *lost: older ones are not. *end: the number behind them.
std::vector<std::string> since(const uint32_t* from, bool* lost, uint32_t* end);

}  // namespace driver_log
}  // namespace gpupool::cuda
