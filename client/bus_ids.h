// PCI addresses of GPUs of several servers.
#pragma once
#include <vector>

#include "protocol/control/hello_codec.h"

namespace gpupool::client {

// Hosts of one kind have their GPUs in the same slots, and programs tell GPUs apart by them: the domain, which tells nothing
// here, makes them differ. Always the same ones for the same servers in the same order.
void make_bus_ids_unique(const std::vector<hello::Device*>& devices);

}  // namespace gpupool::client
