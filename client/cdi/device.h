// Describes what a container needs to use a server or a pool: variables, and mounts of the client library, of
// credentials and of the folder of a Unix socket. Used by pool-cdi and client/kubernetes/; reads files, one
// thread.
//
// The library is in the same place in every container, /usr/lib/gpupool/lib/client, whatever the host's
// folder is, because LD_LIBRARY_PATH and the path of pool-lease depend on it.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "client/cdi/specification.h"
#include "client/run/environment.h"
#include "common/result.h"

namespace gpupool::cdi {

struct DeviceOptions {
  std::string name = "all";
  std::string server;  // value of GPUPOOL, with the request of a pool:// address
  // Instead of `server`: the host's folder of a lease file (client/lease/file.h) named "servers".
  std::string lease_folder;
  std::string token_file;  // this and the next three: paths on the host; empty: none
  std::string tls_ca;
  std::string tls_certificate;
  std::string tls_key;
  std::vector<std::string> variables;  // NAME=VALUE
  std::string library_path;            // folders of the container behind gpupool's in LD_LIBRARY_PATH
  // Mounts the libraries into the dynamic linker's own folders instead of setting LD_LIBRARY_PATH.
  bool system_folders = false;
  bool jax = false;  // sets PYTHONPATH to the JAX plugin
};

struct Description {
  Device device;
  std::vector<std::string> notes;  // for the user: what may surprise
};

// ErrorCode::invalid: an option is wrong; unavailable: a file cannot be used.
Result<Description> describe_device(const run::Installation& installation, const DeviceOptions& options);

// Returns what the containers of all devices get: the folder of the client library, and pool-smi if the
// installation brings all libraries that it needs.
Edits common_edits(const run::Installation& installation);

}  // namespace gpupool::cdi
