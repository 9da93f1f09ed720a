// The file by which a lease's servers and tokens reach the programs that run under it: written by pool-lease (client/holder/), anew
// whenever the tokens were renewed, and read by the client library when it connects.
//
// A line "gpupool lease 1", then one for each server in the order of the devices: its address, a blank, its token.
// Only the user can read it.
#pragma once
#include <string>
#include <vector>

#include "protocol/transport/transport.h"
#include "protocol/wire/result.h"

namespace gpupool::client {

struct LeasedServer {
  transport::Endpoint endpoint;
  std::string token;
};

Result<std::vector<LeasedServer>> read_lease_file(const std::string& path);
// What GPUPOOL names without asking a scheduler: "lease:FILE", or addresses with commas between them.
Result<std::vector<LeasedServer>> named_servers(const std::string& text);
// At once or not at all: who reads it meanwhile sees the old one. No server: the lease is over.
Result<void> write_lease_file(const std::string& path, const std::vector<LeasedServer>& servers);

}  // namespace gpupool::client
