// pool-admin's command line for a pool's scheduler (pool-admin --scheduler). Called by
// command/pool_admin.cc.
#pragma once
#include <array>
#include <string_view>

namespace gpupool::admin {

// Commands that exist only for a scheduler, and only for a poold; used for hints in error messages. The
// subcommand `quota clear` exists only for a scheduler, too. `suspend` and `resume` are for a lease there,
// and for a session here.
inline constexpr std::array<std::string_view, 10> kCommandsOfPool{
    "leases", "queue", "nodes", "drain", "undrain", "policy", "evict", "move", "why", "usage"};
inline constexpr std::array<std::string_view, 3> kCommandsOfPoold{"sessions", "kill", "migrate"};

// Returns the exit status; throws Failure.
int run_for_pool(int count, char** words);

}  // namespace gpupool::admin
