#include "protocol/scheduler/channel.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>

#include "common/admission/received_limits.h"
#include "common/files/exposure.h"
#include "common/text/printable.h"
#include "protocol/control/connect_failure.h"
#include "protocol/transport/loopback.h"

namespace gpupool::pool {
namespace {

// The scheduler rejects pings more often than every 5 s.
constexpr int kKeepaliveMs = 6'000, kKeepaliveTimeoutMs = 4'000;
constexpr int kConnectMs = 3'000;  // short, because another scheduler may be reachable

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// gRPC takes such a text in place of a private key, and loads the library that it names.
constexpr std::string_view kEngine = "engine:";

std::string private_key(const std::string& path) {
  std::string key = contents(path);
  return key.starts_with(kEngine) ? "" : key;
}

}  // namespace

std::shared_ptr<grpc::Channel> open_channel(const PoolAddress& address, const Scheduler& scheduler,
                                            const transport::TlsOptions& tls, int most_message_bytes) {
  grpc::ChannelArguments arguments;
  limit_received(arguments, most_message_bytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a new connection for each attempt
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // as in connections to poold
  if (tls.ca.empty() && (address.insecure || transport::connects_to_loopback(scheduler.host))) {
    return grpc::CreateCustomChannel(scheduler.text(), grpc::InsecureChannelCredentials(), arguments);
  }
  grpc::SslCredentialsOptions options;
  if (!tls.ca.empty()) options.pem_root_certs = contents(tls.ca);
  if (!tls.certificate.empty()) options.pem_cert_chain = contents(tls.certificate);
  if (!tls.key.empty()) options.pem_private_key = private_key(tls.key);
  return grpc::CreateCustomChannel(scheduler.text(), grpc::SslCredentials(options), arguments);
}

Result<void> check_files(const transport::TlsOptions& tls) {
  const auto checked = files::check_secret(tls.key);
  if (checked && contents(tls.key).starts_with(kEngine))
    return Error{ErrorCode::invalid, "GPUPOOL_TLS_KEY: " + tls.key + " must have a private key in PEM form"};
  return checked ? checked : Error{ErrorCode::invalid, "GPUPOOL_TLS_KEY: " + checked.error().message};
}

grpc::Status printable_status(const grpc::Status& status) {
  return status.ok() ? status : grpc::Status(status.error_code(), printable_message(status.error_message()));
}

std::optional<size_t> leader_of(const grpc::ClientContext& context, std::vector<Scheduler>& schedulers) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto leader = metadata.find("leader");
  if (leader == metadata.end()) return std::nullopt;
  const std::string text(leader->second.data(), leader->second.size());
  if (printable_message(text) != text) return std::nullopt;
  const auto parsed = parse_pool_address("pool://" + text);
  if (!parsed || parsed->schedulers.size() != 1) return std::nullopt;
  const auto known = std::find_if(schedulers.begin(), schedulers.end(), [&](const Scheduler& one) {
    return one.text() == parsed->schedulers[0].text();
  });
  const auto place = static_cast<size_t>(known - schedulers.begin());
  if (known == schedulers.end()) schedulers.push_back(parsed->schedulers[0]);
  return place;
}

std::string failure_text(const Scheduler& scheduler, const grpc::Status& status) {
  const std::string why = pool::connect_failure(status.error_message());
  if (why.empty()) return "scheduler " + scheduler.text() + ": " + status.error_message();
  return "cannot reach pool-scheduler at " + scheduler.text() + " (" + why + "): check " +
         (why == pool::kNoGrpc ? "host and port: poold addresses are tcp://HOST:PORT; if pool-scheduler uses "
                                 "TLS, set GPUPOOL_TLS_CA"
          : why.starts_with("TLS") ? "that pool-scheduler uses TLS on this port, and that GPUPOOL_TLS_CA is "
                                     "the CA of its certificate"
                                   : "host and port, and that pool-scheduler is running");
}

}  // namespace gpupool::pool
