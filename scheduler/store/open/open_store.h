// Makes a Store from its address: the one place that knows all kinds of stores. Called once at the start, on
// any thread.
#pragma once
#include <memory>
#include <string>

#include "protocol/transport/transport.h"
#include "scheduler/store/store.h"

namespace gpupool::scheduler {

// Opens "sqlite:FILE", "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]", or "etcds://..." with TLS. `tls` names the
// client's certificate files. etcd:// to another host requires `insecure`. ErrorCode::invalid: bad address or
// files. ErrorCode::unavailable: the store cannot be used.
Result<std::unique_ptr<Store>> open_store(const std::string& text, const transport::TlsOptions& tls = {},
                                          bool insecure = false);
// Checks the address as open_store() does (ErrorCode::invalid), without creating or opening anything.
Result<void> check_store(const std::string& text, bool insecure);

}  // namespace gpupool::scheduler
