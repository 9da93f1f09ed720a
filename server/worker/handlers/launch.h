// The body on the wire that launches and kernel nodes of graphs have in common. Executor's thread.
#pragma once
#include <optional>
#include <span>

#include "protocol/wire/commands.h"
#include "server/worker/session/session.h"

namespace gpupool::worker::commands {

struct LaunchBody {
  wire::Launch launch;
  std::span<const std::byte> attributes;  // CUlaunchAttribute, not aligned
  std::span<const std::byte> parameters;
};
// Reads the rest of the body. Returns nullopt if it is malformed.
std::optional<LaunchBody> read_launch(wire::Reader& body);

// Returns the client's handle of the event that the attribute names, or nullopt if it names none.
std::optional<uint64_t> event_of(const CUlaunchAttribute& attribute);
// Converts a client's attribute to the driver's.
CUresult translate(Session& session, CUlaunchAttribute& attribute);

}  // namespace gpupool::worker::commands
