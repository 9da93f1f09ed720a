// Names of a node's conditions, as users of pool-admin and pool-scheduler see them. Values; any thread.
#pragma once
#include "protocol/control/pool_admin.pb.h"

namespace gpupool::pool {

inline const char* text_of(NodeState::Condition condition) {
  switch (condition) {
    case NodeState::OPEN: return "open";
    case NodeState::DRAINED: return "drained";
    case NodeState::NOT_READY: return "not-ready";
    case NodeState::FENCED: return "fenced";
    case NodeState::SILENT: return "silent";
    case NodeState::LOST: return "lost";
    case NodeState::STOPPED: return "stopped";
    default: return "unknown";
  }
}

}  // namespace gpupool::pool
