// gRPC channels to a pool's schedulers, and the errors and redirections that schedulers return. Used by
// LeaseClient and pool-admin. The functions hold no state and may be called by any thread.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/scheduler/address.h"
#include "protocol/transport/transport.h"

namespace gpupool::pool {

constexpr int kMostEventBytes = 4 << 20;  // limit for messages to pool-lease
// Uses TLS with the files in `tls`, or with the system's authorities. Without TLS only to this host, or if
// the address says insecure=1. A message above `most_message_bytes` fails its call.
std::shared_ptr<grpc::Channel> open_channel(const PoolAddress& address, const Scheduler& scheduler,
                                            const transport::TlsOptions& tls,
                                            int most_message_bytes = kMostEventBytes);

// Call before the first channel is opened. ErrorCode::invalid: other users can read the private key in `tls`,
// so it is not used.
Result<void> check_files(const transport::TlsOptions& tls);

// Returns the status with a message that is safe to show: printable and of bounded length.
grpc::Status printable_status(const grpc::Status& status);

// After a failed call: returns the index in `schedulers` of the leader that the reply names, appending it if
// it is new; nullopt: the reply names none.
std::optional<size_t> leader_of(const grpc::ClientContext& context, std::vector<Scheduler>& schedulers);

// Explains a failed call to the user: the scheduler's message or, if no scheduler answered, what to check.
std::string failure_text(const Scheduler& scheduler, const grpc::Status& status);

}  // namespace gpupool::pool
