// The tenant of a namespace: the token in a Secret there, else a token for all namespaces. Any thread.
#pragma once
#include <string>

#include "client/kubernetes/api_server.h"

namespace gpupool::kubernetes {

struct TenantSettings {
  std::string secret = "gpupool-token";  // name of the Secret; its key `token` has the token
  std::string default_token_file;        // for namespaces without the Secret; empty: no token
};

// Returns the token; empty: none is configured. ErrorCode::unavailable: the API server does not answer;
// invalid: the Secret or the file has no token.
Result<std::string> token_of(const ApiServer& api, const TenantSettings& settings, const std::string& space);
// Returns the first line of a file. ErrorCode::invalid: other users can read the file, or it is empty.
Result<std::string> read_token(const std::string& path);

}  // namespace gpupool::kubernetes
