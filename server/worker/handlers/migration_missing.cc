// Handlers of commands that this worker does not execute yet.
#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {

Outcome adopt_session(Session&, Command&) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
Outcome migrate_session(Session&, Command&) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
Outcome fill_variable(Session&, Command&) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace gpupool::worker::commands
