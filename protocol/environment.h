// Environment variables: sets those of this process, and reads the credentials of clients and of pool-admin.
// Call set_environment() only at startup, before the process starts a second thread: setenv() races with
// getenv() in other threads, including those of libraries.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>

#include "protocol/transport/transport.h"

namespace gpupool {

// Sets `name` to `value`; with `replace` false, keeps an existing value. Returns false if out of memory.
[[nodiscard]] inline bool set_environment(const char* name, const std::string& value, bool replace = true) {
  return ::setenv(name, value.c_str(), replace ? 1 : 0) ==
         0;  // NOLINT(concurrency-mt-unsafe): one thread, see above
}

// Returns the variable's value; empty if it is not set.
std::string environment_text(const char* variable);

using ReportMistake = std::function<void(const std::string& mistake)>;

// Returns the current token from GPUPOOL_TOKEN_FILE or GPUPOOL_TOKEN; empty: none. Reports a file that cannot
// be used or that other users can read.
std::string token_from_environment(const ReportMistake& report);

// GPUPOOL_TLS_CA, GPUPOOL_TLS_CERT and GPUPOOL_TLS_KEY.
transport::TlsOptions tls_from_environment();

}  // namespace gpupool
