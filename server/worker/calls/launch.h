// What a launch and a kernel node of a graph have in common: their body on the wire. The executor's thread.
#pragma once
#include <optional>
#include <span>

#include "protocol/wire/commands.h"
#include "server/worker/executor.h"

namespace gpupool::worker::commands {

struct LaunchBody {
  wire::Launch launch;
  std::span<const std::byte> attributes;  // CUlaunchAttribute, not aligned
  std::span<const std::byte> parameters;
};
// All that is left of the body; nullopt: malformed.
std::optional<LaunchBody> read_launch(wire::Reader& body);

// The client's handle of the event that the launch records; nullopt: the attribute names none.
std::optional<uint64_t> event_of(const CUlaunchAttribute& attribute);
// A client's attribute becomes the driver's.
CUresult translate(Executor& session, CUlaunchAttribute& attribute);

}  // namespace gpupool::worker::commands
