// The events of this process that other processes may open (CU_EVENT_INTERPROCESS). cuEventRecord of one must
// reach its server before it returns, because another process, on its own connection, may wait for the event
// right away. While there are none, contains() costs one atomic load. Thread-safe.
#pragma once
#include "protocol/driver/cuda_header.h"

namespace gpupool::client::interprocess_events {

void add(CUevent event);
void remove(CUevent event);
bool contains(CUevent event);

}  // namespace gpupool::client::interprocess_events
