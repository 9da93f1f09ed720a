// Makes the PCI bus ids of the GPUs of several servers unique. Called when the client library and the NVML
// library number their devices. One thread.
#pragma once
#include <vector>

#include "protocol/control/hello_codec.h"

namespace gpupool::cuda {

// Hosts of the same model have their GPUs at the same bus ids, and programs distinguish GPUs by bus id.
// Changes the PCI domain, which carries no information here, of duplicates. The result depends only on the
// servers and their order.
void make_bus_ids_unique(const std::vector<hello::Device*>& devices);

}  // namespace gpupool::cuda
