// The tenant of a namespace: the token in a Secret there, else a token for all namespaces. Any thread.
#pragma once
#include <string>

#include "client/kubernetes/api_server.h"

namespace gpupool::kubernetes {

struct TenantSettings {
  std::string secret = "gpupool-token";  // name of the Secret; its key `token` has the token
  std::string default_token_file;        // for namespaces without the Secret; empty: no token
};

struct TenantToken {
  std::string text;           // empty: none is configured
  bool of_namespace = false;  // from the Secret there, else the default token
};
// Returns the token for a new lease. ErrorCode::unavailable: the API server does not answer; refused: this
// account may not read the namespace's Secret; invalid: the Secret or the file has no token.
Result<TenantToken> token_of(const ApiServer& api, const TenantSettings& settings, const std::string& space);
// Reads the token of a held lease again from its source: the namespace's Secret or the default file. Returns
// an empty text if the source has no token. Never falls back from the Secret to the default file, whose token
// belongs to another tenant.
Result<std::string> renewed_token(const ApiServer& api, const TenantSettings& settings,
                                  const std::string& space, bool of_namespace);
// Returns the first line of a file. ErrorCode::invalid: other users can read the file, or it is empty.
Result<std::string> read_token(const std::string& path);

}  // namespace gpupool::kubernetes
