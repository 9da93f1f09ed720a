#include "scheduler/service/auth_failure_log.h"

#include "common/admission/peer.h"
#include "common/log/log.h"

namespace gpupool::scheduler {
namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

}  // namespace

// gRPC's peer() is "ipv4:10.0.0.1:4321" or "ipv6:%5B::1%5D:4321".
std::string peer_of_call(const grpc::CallbackServerContext& context) {
  std::string address = context.peer();
  address.erase(0, address.find(':') + 1);
  replace_all(address, "%5B", "[");
  replace_all(address, "%5D", "]");
  return peer_of(address);
}

AuthFailureLog::AuthFailureLog(asio::io_context& context, AuditFile& audit)
    : audit_(audit), suppressed_(context, [this](uint64_t count) {
        log::warning("callers_refused_too", {{"count", count}});
        audit_.append_if_room("callers_refused_too", {{"count", count}});
      }) {}

void AuthFailureLog::note(const std::string& peer, const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAUTHENTICATED &&
      status.error_code() != grpc::StatusCode::PERMISSION_DENIED)
    return;
  ++count_;
  if (!rates_.take(peer) || !all_.take()) return suppressed_.note();
  log::warning("caller_refused", {{"peer", peer}, {"reason", status.error_message()}});
  audit_.append_if_room("caller_refused", {{"peer", peer}, {"reason", status.error_message()}});
}

}  // namespace gpupool::scheduler
