// The file by which a lease's servers and tokens reach the programs that run under it: written by pool-lease (client/holder/), anew
// whenever the tokens were renewed, and read by the client library when it connects.
//
// A line "gpupool lease 1", then one for each server in the order of the devices: its address, a blank, its token.
// It is alone in a folder of mode 0700. A file or folder that another user owns or can write is refused (ErrorCode::unavailable), as is a symbolic
// link: tokens must reach nobody else, and nobody else may name the servers that get them.
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
// What stands in the file `path`.
Result<std::vector<LeasedServer>> parse_lease(const std::string& path, const std::string& text);
// What GPUPOOL names without asking a scheduler: "lease:FILE", or addresses with commas between them.
Result<std::vector<LeasedServer>> named_servers(const std::string& text);
// Makes a folder for a lease file, in XDG_RUNTIME_DIR or else /tmp. Returns the path of the file, which does not exist yet.
Result<std::string> make_lease_folder();
// Replaces the file atomically. No server: the lease is over.
Result<void> write_lease_file(const std::string& path, const std::vector<LeasedServer>& servers);
// Removes the file and its folder.
void remove_lease_file(const std::string& path);

}  // namespace gpupool::client
