// pool-admin's command line where it speaks to a pool's scheduler.
#pragma once
#include <array>
#include <string_view>

namespace gpupool::admin {

// Commands that only a scheduler has, and commands that only a poold has: for hints. `quota clear` is a scheduler's, too.
inline constexpr std::array<std::string_view, 8> kCommandsOfPool{"leases", "queue", "nodes", "drain", "undrain", "policy", "evict", "why"};
inline constexpr std::array<std::string_view, 2> kCommandsOfPoold{"sessions", "kill"};

// The exit status. Throws Failure.
int run_for_pool(int count, char** words);

}  // namespace gpupool::admin
