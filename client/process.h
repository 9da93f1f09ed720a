// What the process has one of: its session, and the policy for start, fork and exit.
//
// The only global of the client. It connects at cuInit, is never destroyed (programs call the driver from exit handlers),
// and says in a forked child what CUDA says: not initialised. Any thread.
#pragma once
#include "client/session.h"

namespace gpupool::client {

// cuInit: connects once; later calls repeat the first answer. The reason of a failure goes to stderr once.
CUresult initialise();

// The session of this process; otherwise the code that a driver call returns now.
CUresult ready(Session** session);

}  // namespace gpupool::client
