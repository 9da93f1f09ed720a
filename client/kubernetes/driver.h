// Settings of the driver that the node's part and the controller share: the driver's name, the pool whose
// GPUs it offers, and how a namespace's tenant is found. Plain data from the command line; any thread.
#pragma once
#include <string>

#include "client/kubernetes/tenant.h"
#include "protocol/transport/transport.h"

namespace gpupool::kubernetes {

struct DriverSettings {
  std::string name = "gpupool.dev";
  std::string server;  // pool://
  transport::TlsOptions tls;
  TenantSettings tenant;
};

}  // namespace gpupool::kubernetes
