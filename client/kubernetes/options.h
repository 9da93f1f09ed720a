// The command line of gpupool-kubernetes.
#pragma once
#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "client/kubernetes/api_server.h"
#include "client/kubernetes/device_plugin.h"
#include "client/kubernetes/driver.h"
#include "common/log/log.h"

namespace gpupool::kubernetes {

struct Options {
  bool node = false;  // else the controller
  DriverSettings driver;
  ApiServer::Settings api;
  log::Format log_format = log::Format::text;

  // node
  std::string node_name;
  std::string kubelet_folder = "/var/lib/kubelet";
  std::string state_folder = "/var/lib/gpupool-kubernetes";
  std::string cdi_file = "/var/run/cdi/gpupool-kubernetes.json";
  unsigned prepare_wait = 20;     // seconds
  unsigned unused_interval = 30;  // seconds
  bool no_dra = false;
  std::vector<Resource> resources;
  std::string plugin_token_file;  // of the device plugin; empty: none
  unsigned units = 64;

  // controller
  std::string operator_token_file;
  std::string pool = "gpupool";
  std::string device_class = "gpupool.dev";
  unsigned interval = 2;          // seconds
  unsigned claims_interval = 15;  // seconds
};

struct EarlyExit {
  int status;
};
// Prints the reason of an EarlyExit.
std::variant<Options, EarlyExit> parse_options(int count, char** words);

}  // namespace gpupool::kubernetes
