// Who this process is, as its hellos say it.
#pragma once
#include "protocol/control/hello_codec.h"

namespace gpupool::client {

// Versions, program, host and process; everything else is the caller's to add.
hello::Hello introduction();

}  // namespace gpupool::client
