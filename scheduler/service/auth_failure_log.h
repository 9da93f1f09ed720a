// Counts calls that fail authentication. Writes them to the log and the audit file up to a rate per peer
// (common/admission/peer.h) and in total; the others are summed up in one line per second. The engine's
// thread; never fails.
#pragma once
#include <grpcpp/grpcpp.h>

#include <asio/io_context.hpp>
#include <cstdint>
#include <string>

#include "common/admission/peer_rates.h"
#include "common/admission/suppressed_events.h"
#include "common/log/audit_file.h"

namespace gpupool::scheduler {

std::string peer_of_call(const grpc::CallbackServerContext& context);

class AuthFailureLog {
 public:
  AuthFailureLog(asio::io_context& context, AuditFile& audit);

  // Counts a call that ends with `status` if that is UNAUTHENTICATED or PERMISSION_DENIED; ignores others.
  void note(const std::string& peer, const grpc::Status& status);
  uint64_t count() const { return count_; }
  // Writes the pending summary. Call before the daemon ends.
  void finish() { suppressed_.finish(); }

 private:
  AuditFile& audit_;
  PeerRates rates_{{.burst = 10, .per_second = 1}};
  TokenBucket all_{{.burst = 200, .per_second = 20}};
  SuppressedEvents suppressed_;
  uint64_t count_ = 0;
};

}  // namespace gpupool::scheduler
