// How programs reach a pool's scheduler, and what it says about who leads.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/holder/address.h"
#include "protocol/transport/transport.h"

namespace gpupool::holder {

// TLS with the files in `tls`, or trusting the system's authorities; in plain only to this host, or where the address says insecure=1.
std::shared_ptr<grpc::Channel> open_channel(const PoolAddress& address, const Scheduler& scheduler, const transport::TlsOptions& tls);

// After a call has failed: the place in `schedulers` of the one that leads, which is added where it is new; none where the call
// says nothing about it.
std::optional<size_t> leader_of(const grpc::ClientContext& context, std::vector<Scheduler>& schedulers);

// Why a call failed, for a user: what the scheduler says or, if none answered, what to check.
std::string failure_text(const Scheduler& scheduler, const grpc::Status& status);

}  // namespace gpupool::holder
