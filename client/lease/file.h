// The lease file passes a lease's servers and tokens to the programs that run under it. pool-lease
// (client/lease_client/) writes it, again whenever tokens are renewed; the client library reads it when it
// connects. Any thread.
//
// Format: the line "gpupool lease 1", then one line per server in the order of the devices: address, space,
// token. A line that begins with "> " has the server to which the lease moves from the server above. The file
// is alone in a folder of mode 0700. A file or folder that another user owns or can write is refused
// (ErrorCode::unavailable), as is a symbolic link: other users must neither read tokens nor name the servers
// that receive them.
#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "protocol/transport/transport.h"

namespace gpupool::client {

struct LeasedServer {
  transport::Endpoint endpoint;
  std::string token;
  std::vector<LeasedServer> next = {};  // one: where the lease is moving to
};

// Precedes the path of a lease file in GPUPOOL.
constexpr std::string_view kLeaseScheme = "lease:";

Result<std::vector<LeasedServer>> read_lease_file(const std::string& path);
// `path` is used in error messages; `text` is the file's contents.
Result<std::vector<LeasedServer>> parse_lease(const std::string& path, const std::string& text);
// Returns the servers that GPUPOOL names without asking a scheduler: "lease:FILE", or comma-separated
// addresses.
Result<std::vector<LeasedServer>> named_servers(const std::string& text);
// Creates a folder for a lease file, in XDG_RUNTIME_DIR or else /tmp. Returns the path of the file, which
// does not exist yet.
Result<std::string> make_lease_folder();
// Returns the folder of a lease file.
std::string lease_folder(const std::string& path);
// Replaces the file atomically, with rename(). An empty list means that the lease is over. The mode is 0644
// for containers, whose users differ from the file's owner: then a folder above keeps out the host's users.
Result<void> write_lease_file(const std::string& path, const std::vector<LeasedServer>& servers,
                              mode_t mode = 0600);
// Removes the file and its folder.
void remove_lease_file(const std::string& path);

}  // namespace gpupool::client
