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

constexpr int kMostEventBytes = 4 << 20;  // of one message for pool-lease
// TLS with the files in `tls`, or trusting the system's authorities; in plain only to this host, or where the address says insecure=1. Messages of more
// than `most_message_bytes` end their call.
std::shared_ptr<grpc::Channel> open_channel(const PoolAddress& address, const Scheduler& scheduler, const transport::TlsOptions& tls,
                                            int most_message_bytes = kMostEventBytes);

// ErrorCode::invalid: the private key in `tls` must not be used, since others can read it. To be asked before the first channel is opened.
Result<void> check_files(const transport::TlsOptions& tls);

// The end of a call with a message that may be shown to a user: printable and bounded.
grpc::Status printable_status(const grpc::Status& status);

// After a call has failed: the place in `schedulers` of the one that leads, which is added where it is new; none where the call
// says nothing about it.
std::optional<size_t> leader_of(const grpc::ClientContext& context, std::vector<Scheduler>& schedulers);

// Why a call failed, for a user: what the scheduler says or, if none answered, what to check.
std::string failure_text(const Scheduler& scheduler, const grpc::Status& status);

}  // namespace gpupool::holder
