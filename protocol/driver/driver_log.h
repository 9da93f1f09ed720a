// A driver library's log of errors for the program (cuLogs...): keeps the last lines. Used by the client
// library and softgpu. Any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

enum class Severity { error = 0, warning = 1 };  // CUlogLevel

// Appends a line, without its newline, and calls the registered listeners.
void log_for_program(Severity severity, std::string_view text);

namespace driver_log {

constexpr size_t kMostBytes = 25'600;  // of lines that are kept

using Listener = void (*)(void* data, int level, char* message, size_t length);
// Returns a handle, or null if out of memory.
void* add_listener(Listener listener, void* data);
// Returns once the listener is not running, except on the calling thread. False: there is no such listener.
bool remove_listener(void* handle);

// Returns the number of the next line.
uint32_t next();
// Returns the kept lines from number `from` on (null: all). *lost: some of those are no longer kept. *end:
// number of the next line.
std::vector<std::string> since(const uint32_t* from, bool* lost, uint32_t* end);

}  // namespace driver_log
}  // namespace gpupool::cuda
