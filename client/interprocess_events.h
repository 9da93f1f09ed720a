// The events of this process that other processes may see (CU_EVENT_INTERPROCESS): a record of one has to be on its server before the call
// returns, since another process, with a connection of its own, may wait for it then. While there are none, asking costs a load.
// Any thread.
#pragma once
#include "protocol/cuda/cuda_header.h"

namespace gpupool::client::interprocess_events {

void add(CUevent event);
void remove(CUevent event);
bool contains(CUevent event);

}  // namespace gpupool::client::interprocess_events
