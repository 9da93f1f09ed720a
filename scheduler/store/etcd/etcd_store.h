// The store in an etcd cluster (docs/adr/0026). The leader's key lives as long as a lease of etcd's that the leader keeps alive; every
// write compares that this key is still the leader's own, and the term, so that who has lost the lead writes nothing.
#pragma once
#include "protocol/transport/transport.h"
#include "scheduler/store/store.h"

namespace gpupool::scheduler {

bool is_etcd_store(const std::string& text);
// ErrorCode::invalid: what is wrong with the address, or that it is etcd:// with a member on another host, which only `insecure` allows.
Result<void> check_etcd_store(const std::string& text, bool insecure);
// Does not connect yet. `tls`: this side's files, for etcds://.
Result<std::unique_ptr<Store>> open_etcd_store(const std::string& text, const transport::TlsOptions& tls);

}  // namespace gpupool::scheduler
