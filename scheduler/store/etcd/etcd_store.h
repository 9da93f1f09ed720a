// Implementation of Store (store.h) in an etcd cluster (docs/adr/0026). The leader's key is attached to an
// etcd lease that the leader keeps alive. Every write transaction checks that this key is still the leader's
// own and that the term is unchanged, so a scheduler that has lost the leadership cannot write.
#pragma once
#include "protocol/transport/transport.h"
#include "scheduler/store/store.h"

namespace gpupool::scheduler {

bool is_etcd_store(const std::string& text);
// ErrorCode::invalid: the address is malformed, or it is etcd:// with a member on another host and `insecure`
// is false.
Result<void> check_etcd_store(const std::string& text, bool insecure);
// Does not connect yet. `tls`: the client's certificate files, for etcds://.
Result<std::unique_ptr<Store>> open_etcd_store(const std::string& text, const transport::TlsOptions& tls);

}  // namespace gpupool::scheduler
