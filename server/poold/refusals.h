// Answers and audits refusals of clients, both limited in rate. poold's thread.
//
// For each address, at most 10 refusals at once and then one per second are answered and audited; DENIED
// beyond that is dropped without an answer. Successful authentication is not limited, so no client can lock
// out others behind its address.
#pragma once
#include <asio/io_context.hpp>
#include <string>

#include "common/admission/peer_rates.h"
#include "common/admission/suppressed_events.h"
#include "server/poold/acceptor/acceptor.h"
#include "server/poold/admin/audit.h"

namespace gpupool::server {

inline const std::string kLeaseSuspended = "the lease is suspended until its scheduler resumes it";
inline const std::string kAuditStalled = "the server cannot write its audit file";

class Refusals {
 public:
  Refusals(asio::io_context& context, Acceptor& acceptor, Audit& audit)
      : acceptor_(acceptor),
        audit_(audit),
        unaudited_(context, [this](uint64_t count) { audit_.denied_too(count); }) {}
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;

  void refuse(Client client, const Refusal& refusal);
  // Writes what the audit has not counted yet.
  void finish() { unaudited_.finish(); }

 private:
  Acceptor& acceptor_;
  Audit& audit_;
  PeerRates denials_{{.burst = 10, .per_second = 1}};
  // Limits audited denials of all addresses together.
  TokenBucket all_denials_{{.burst = 200, .per_second = 50}};
  SuppressedEvents unaudited_;
};

}  // namespace gpupool::server
