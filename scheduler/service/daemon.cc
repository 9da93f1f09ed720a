#include "scheduler/service/daemon.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <asio/ip/tcp.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <cstdio>
#include <optional>
#include <thread>

#include "common/files/port_file.h"
#include "common/http/http_server.h"
#include "common/log/log.h"
#include "common/version.h"
#include "protocol/lease/token.h"
#include "scheduler/service/admin.h"
#include "scheduler/service/certificates.h"
#include "scheduler/service/metrics.h"
#include "scheduler/service/streams.h"
#include "scheduler/service/usage_history.h"
#include "scheduler/service/web_page.h"
#include "scheduler/store/open/open_store.h"

namespace gpupool::scheduler {
namespace {

constexpr int kKeepaliveMs = 10'000;
constexpr int kMinBetweenPingsMs = 5'000;
constexpr std::chrono::seconds kCallsEnd{5};
// Limits on the resources that unauthenticated callers can use.
constexpr size_t kMaxMemoryOfCalls = size_t{1} << 30;  // bytes, for all connections and calls
constexpr int kMaxMessageBytes = 1024 * 1024;          // a node's report of about 30,000 leases
constexpr int kMaxMetadataBytes = 8 * 1024;
constexpr int kMaxStreamsOfConnection = 4096;
constexpr int kHandshakeMs = 10'000;

int fail(const std::string& why) {
  std::fprintf(stderr, "pool-scheduler: %s\n", why.c_str());
  return kExitFailure;
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A resolved, numeric "HOST:PORT".
struct ListenAddress {
  std::string text;
  bool loopback = false;
};
Result<ListenAddress> resolve(const std::string& listen) {
  const auto wrong = [&](const std::string& why) {
    return Error{ErrorCode::invalid, "cannot listen on '" + listen + "': " + why};
  };
  const size_t colon = listen.rfind(':');
  if (colon == listen.npos || colon == 0 || listen.find("://") != listen.npos)
    return wrong("must be HOST:PORT, like 127.0.0.1:9800");
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  asio::io_context context;
  asio::error_code status;
  const auto found = asio::ip::tcp::resolver(context).resolve(host, listen.substr(colon + 1),
                                                              asio::ip::tcp::resolver::passive, status);
  if (status) return wrong(status.message());
  const asio::ip::tcp::endpoint endpoint = *found.begin();
  return ListenAddress{text_of(endpoint), endpoint.address().is_loopback()};
}

// Resolves the address to listen on. ErrorCode::invalid: it is malformed, or not allowed without TLS, tokens
// or --insecure.
Result<ListenAddress> allowed_address(const Options& options) {
  auto where = resolve(options.listen);
  if (where && !where->loopback && !options.insecure &&
      (options.tls.certificate.empty() || !options.callers.has_tokens())) {
    return Error{ErrorCode::invalid,
                 "refusing to listen on " + where->text +
                     ": other machines can reach it, so TLS (--tls-certificate, --tls-key) and "
                     "tokens ([[tenant]], [[node]], [[operator]]) are required; or use --insecure in a "
                     "trusted network"};
  }
  return where;
}

class Daemon {
 public:
  Daemon(const Options& options, ListenAddress where, std::unique_ptr<Store> store, lease::SigningKey key)
      : options_(options),
        where_(std::move(where)),
        end_signals_(context_, SIGTERM, SIGINT),
        reload_signal_(context_, SIGHUP),
        engine_(context_, std::move(store), std::move(key), options.callers, options.audit_file,
                options.return_time),
        web_page_(engine_, options.web_hosts),
        leases_(engine_),
        nodes_(engine_),
        usage_(engine_, options.usage),
        admin_(engine_, usage_) {}

  int run() {
    if (const auto opened = engine_.open_audit(); !opened) return fail(opened.error().message);
    if (const auto served = serve(); !served) return fail(served.error().message);
    if (const auto served = serve_http(); !served) return fail(served.error().message);
    await_end_signal();
    await_reload_signal();
    usage_.start();
    engine_.start(options_.address.empty() ? address_ : options_.address);
    if (!options_.port_file.empty()) {
      if (const auto written = write_port_file(options_.port_file, static_cast<uint16_t>(port_)); !written)
        return fail(written.error().message);
    }
    log::info("listening", {{"address", address_},
                            {"tls", options_.tls.certificate.empty() ? "no" : "yes"},
                            {"version", kVersion},
                            {"key", lease::hexadecimal(engine_.key().public_key().id())}});
    context_.run();
    if (!options_.port_file.empty()) ::unlink(options_.port_file.c_str());
    log::info("stopped", {});
    return 0;
  }

  // Stops the server if run() failed after starting it.
  ~Daemon() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    if (shutdown_.joinable()) shutdown_.join();
  }

 private:
  Result<void> serve() {
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (!options_.tls.certificate.empty()) {
      certificates_.emplace(options_.tls);
      if (const auto read = certificates_->read(); !read) return read.error();
      credentials = certificates_->credentials();
      certificates_->watch(context_, options_.tls_interval);
    }
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinBetweenPingsMs);
    builder.SetResourceQuota(grpc::ResourceQuota("calls").Resize(kMaxMemoryOfCalls));
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsOfConnection);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    builder.AddListeningPort(where_.text, credentials, &port_);
    builder.RegisterService(&leases_);
    builder.RegisterService(&nodes_);
    builder.RegisterCallbackGenericService(&admin_);
    server_ = builder.BuildAndStart();
    if (!server_ || port_ == 0)
      return Error{ErrorCode::unavailable, "cannot listen on " + where_.text + ": the port may be in use"};
    address_ = where_.text.substr(0, where_.text.rfind(':') + 1) + std::to_string(port_);
    return {};
  }

  Result<void> serve_http() {
    if (options_.metrics.empty()) return {};
    HttpAccess access{options_.web_hosts, [this](const HttpRequest& request, const std::string& peer) {
                        return web_page_.refuse(request, peer);
                      }};
    auto http = HttpServer::listen(
        context_, options_.metrics, [this](const std::string& path) { return answer(path); },
        HttpServer::kPatience, std::move(access));
    if (!http) return http.error();
    http_ = std::move(*http);
    web_page_.start();
    log::info("metrics", {{"url", "http://" + text_of(http_->endpoint()) + "/metrics"}});
    if (!http_->endpoint().address().is_loopback()) {
      const bool has_tokens = options_.callers.has_tokens();
      log::warning(
          "metrics_open",
          {{"reason", has_tokens ? "anyone who can connect to this address can read the metrics, with "
                                   "the names and usage of tenants and nodes; the web page's data need "
                                   "an operator's token, which is sent unencrypted"
                                 : "anyone who can connect to this address can read the names and usage "
                                   "of tenants, programs and hosts"}});
    }
    return {};
  }

  HttpResponse answer(const std::string& path) {
    if (path == "/metrics") {
      return {200, engine_.leads() ? metrics_text(take_snapshot(engine_)) : metrics_text_of_follower(),
              kMetricsType};
    }
    if (path == "/healthz") return {200, "ok\n"};
    if (path == "/readyz")
      return engine_.leads() ? HttpResponse{200, "leader\n"} : HttpResponse{503, "not the leader\n"};
    if (auto page = web_page_.answer(path)) return std::move(*page);
    return {
        404,
        "not found; available: /, /pool.json, /history.json, /events.json, /metrics, /healthz, /readyz\n"};
  }

  void await_end_signal() {
    end_signals_.async_wait([this](const asio::error_code& status, int signal) {
      if (status) return;
      log::info("stopping", {{"signal", signal}});
      http_.reset();
      web_page_.stop();
      usage_.stop();
      engine_.stop([this] {
        // Calls end on the engine's thread, which must run until the last one has ended, so shut down on
        // another thread.
        shutdown_ = std::thread([this] {
          server_->Shutdown(std::chrono::system_clock::now() + kCallsEnd);
          server_->Wait();
          asio::post(context_, [this] { context_.stop(); });
        });
      });
    });
  }

  void await_reload_signal() {
    reload_signal_.async_wait([this](const asio::error_code& status, int) {
      if (status) return;
      await_reload_signal();
      reload();
    });
  }

  // SIGHUP: reopens the audit file, renews the certificates, and reads tenants, nodes and operators again. An
  // invalid configuration file changes nothing.
  void reload() {
    if (const auto opened = engine_.open_audit(); !opened)
      log::error("audit_failed", {{"reason", opened.error().message}});
    if (certificates_) certificates_->renew();
    if (options_.config_file.empty() && certificates_) return;
    if (options_.config_file.empty())
      return log::warning("nothing_to_reload", {{"reason", "pool-scheduler was started without --config"}});
    Options read;
    auto good = read_config(options_.config_file, read);
    if (good && options_.callers.has_tokens() && !read.callers.has_tokens())
      good = Error{ErrorCode::invalid, "the new configuration has no tokens"};
    if (!good) return log::error("reload_failed", {{"reason", good.error().message}});
    engine_.configure(std::move(read.callers));
    log::info("reloaded", {{"file", options_.config_file}});
  }

  const Options& options_;
  const ListenAddress where_;
  asio::io_context context_{1};
  asio::signal_set end_signals_;
  asio::signal_set reload_signal_;
  Engine engine_;
  WebPage web_page_;
  LeasesService leases_;
  NodesService nodes_;
  UsageHistory usage_;
  AdminService admin_;
  std::unique_ptr<HttpServer> http_;
  std::optional<Certificates> certificates_;  // null: no TLS
  std::unique_ptr<grpc::Server> server_;
  std::thread shutdown_;
  int port_ = 0;
  std::string address_;
};

}  // namespace

int run_daemon(const Options& options) {
  (void)::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit();
  log::start(STDERR_FILENO, options.log_level, options.log_format, "pool-scheduler");
  auto where = allowed_address(options);  // check before creating files
  if (!where) return fail(where.error().message);
  if (const auto allowed = check_store(options.store, options.insecure); !allowed)
    return fail(allowed.error().message);
  bool made = false;
  auto key = load_key(options.key, made);
  if (!key) return fail(key.error().message);
  if (made)
    log::info("key_made",
              {{"file", options.key},
               {"note", "poolds need its public key: pool-scheduler --key FILE --print-public-key"}});
  auto store = open_store(options.store, options.store_tls, options.insecure);
  if (!store) return fail(store.error().message);
  Daemon daemon(options, std::move(*where), std::move(*store), std::move(*key));
  return daemon.run();
}

}  // namespace gpupool::scheduler
