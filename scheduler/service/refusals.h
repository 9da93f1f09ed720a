// Callers that are refused for the token that they show: each refusal is counted; some of each peer (server/admission/peer.h), and of all together, have a line
// in log and audit file, and others are summed up each second. The engine's thread; never fails.
#pragma once
#include <grpcpp/grpcpp.h>

#include <asio/io_context.hpp>
#include <cstdint>
#include <string>

#include "server/admission/left_out.h"
#include "server/admission/peer_rates.h"
#include "server/log/audit_file.h"

namespace gpupool::scheduler {

std::string peer_of_call(const grpc::CallbackServerContext& context);

class Refusals {
 public:
  Refusals(asio::io_context& context, server::AuditFile& audit);

  // Counts a call that ends with `status`, if that is for what its caller shows.
  void note(const std::string& peer, const grpc::Status& status);
  uint64_t count() const { return count_; }
  // Reports what has not been reported, before the end.
  void finish() { left_out_.finish(); }

 private:
  server::AuditFile& audit_;
  server::PeerRates rates_{{.burst = 10, .per_second = 1}};
  server::TokenBucket all_{{.burst = 200, .per_second = 20}};
  server::LeftOut left_out_;
  uint64_t count_ = 0;
};

}  // namespace gpupool::scheduler
