// What the node's and the controller's part of the driver have in common: its name, the pool that it gives
// shares of, and how a namespace's tenant is found. Plain data from the command line; any thread.
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
