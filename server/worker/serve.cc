#include "server/worker/serve.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "common/log/log.h"
#include "common/version.h"
#include "protocol/transport/resume/resumable_connection.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/peers.h"
#include "server/worker/session/run_session.h"

namespace gpupool::worker {
namespace {

using ConnectionResult = Result<std::unique_ptr<transport::Connection>>;

Result<void> send_reply(transport::Connection& connection, const control::HelloReply& reply,
                        transport::Deadline deadline) {
  std::string body;
  if (!reply.SerializeToString(&body) || body.size() > wire::kMaxHelloBytes) {
    return Error{ErrorCode::limit, "the description of the devices is too long"};
  }
  wire::Preamble preamble{.length = static_cast<uint32_t>(body.size())};
  const iovec parts[2] = {{&preamble, sizeof preamble}, {body.data(), body.size()}};
  return transport::send_all(connection, parts, deadline);
}

// Opens the connection of a session or bulk message.
template <class Body>
ConnectionResult open_connection(const Body& body, int descriptor, transport::Options options) {
  options.tls.secret.assign(body.tls_secret.data(), body.tls_secret.size());
  if (body.transport == server::packet::kFromFile)
    return transport::adopt_stream(descriptor, "the file of the suspended session", options);
  const std::string scheme(body.transport.data(), ::strnlen(body.transport.data(), body.transport.size()));
  return transport::adopt(scheme, descriptor, options);
}

// Sets what the client's hello chooses.
void read_wishes(const std::string& hello, SessionStart& start) {
  control::Hello wish;
  if (!wish.ParseFromString(hello)) return;
  start.compression = static_cast<compression::Policy>(std::min(wish.compression(), uint32_t{2}));
  start.takes_quota_refusals = wish.takes_quota_refusals();
  start.can_migrate = wish.can_migrate();
  start.wants_timeline = wish.wants_timeline();
}

template <class Body>
bool is_over_rdma(const Body& body) {
  return std::strcmp(body.transport.data(), "rdma") == 0;
}

bool can_resume(const server::packet::Session& said, const std::string& hello) {
  control::Hello wish;
  return said.resume_timeout_ms != 0 && wish.ParseFromString(hello) && wish.can_resume() &&
         (!is_over_rdma(said) || wish.can_resume_rdma());
}

Result<void> welcome_bulk(transport::Connection& connection, transport::Deadline deadline, bool resumable) {
  control::HelloReply welcome;
  welcome.set_protocol_version(wire::kProtocolVersion);
  welcome.set_server_version(kVersion);
  welcome.set_resume_timeout_ms(resumable ? 1 : 0);  // the session's tells the time
  if (auto sent = send_reply(connection, welcome, deadline); !sent) return sent;
  return connection.upgrade(transport::Side::server, deadline);
}

// Opens the connection with which a client resumes its session. `options.session` is not null if the session
// is over rdma: commands under way may then contain keys, which are void on any other transport.
ConnectionResult welcome_back(const server::ControlMessage& message, uint64_t received,
                              transport::Options options) {
  const auto back = message.body<server::packet::Resume>();
  options.bulk = back.link != 0;
  const bool lacks_rdma = options.session && !options.bulk && !is_over_rdma(back);
  if (lacks_rdma) options.session = nullptr;  // it is to be told why
  if (!options.session) options.rdma.use = transport::RdmaOptions::Use::never;
  auto connection = open_connection(back, message.descriptor, options);
  if (!connection) return connection;
  control::HelloReply welcome;
  welcome.set_protocol_version(wire::kProtocolVersion);
  welcome.set_server_version(kVersion);
  const auto deadline = transport::Clock::now() + options.dead_peer_timeout;
  if (lacks_rdma) {
    const std::string why = "the session is over rdma, and its client returns without";
    welcome.set_status(control::HelloReply::DENIED);
    welcome.set_reason(why);
    (void)send_reply(**connection, welcome, deadline);
    return Error{ErrorCode::malformed, why};
  }
  welcome.set_resume_received(received);
  if (auto sent = send_reply(**connection, welcome, deadline); !sent) return sent.error();
  if (auto upgraded = (*connection)->upgrade(transport::Side::server, deadline); !upgraded)
    return upgraded.error();
  return connection;
}

std::optional<VisibleDevices> visible_devices(const server::packet::Session& said, size_t devices) {
  if (said.gpu_count == 0) return VisibleDevices::all(devices);
  if (said.gpu_count > said.gpus.size()) return std::nullopt;
  const std::vector<int> ordinals(said.gpus.begin(), said.gpus.begin() + said.gpu_count);
  const bool there = std::all_of(ordinals.begin(), ordinals.end(),
                                 [&](int ordinal) { return static_cast<size_t>(ordinal) < devices; });
  return there ? std::optional(VisibleDevices(ordinals)) : std::nullopt;
}

// Describes the session to the client, but for images.
control::HelloReply describe_session(const Served& served, const server::packet::Session& said,
                                     const VisibleDevices& visible, bool shares_memory) {
  control::HelloReply reply;
  reply.set_status(control::HelloReply::OK);
  reply.set_protocol_version(wire::kProtocolVersion);
  reply.set_server_version(kVersion);
  reply.set_driver_version(served.library.driver_version());
  reply.set_session_id(std::string(said.id.data(), said.id.size()));
  for (const int ordinal : visible.ordinals())
    *reply.add_devices() = served.devices[static_cast<size_t>(ordinal)];
  reply.mutable_addresses()->set_base(served.range.base);
  reply.mutable_addresses()->set_size(served.range.size);
  reply.set_worker_pid(::getpid());
  reply.set_server_id(said.server_id);
  reply.set_peer_protocol(wire::kPeerProtocolVersion);
  reply.set_encrypts_peers(served.tls);
  // Bulk connections have no advantage over shared memory.
  reply.set_bulk_connections(shares_memory ? 0 : wire::kMaxBulkConnections);
  reply.set_takes_compressed(true);
  reply.set_bulk_token(std::string(said.bulk_token.data(), said.bulk_token.size()));
  return reply;
}

void set_resumable(SessionStart& start, std::unique_ptr<transport::Connection> connection,
                   const server::packet::Session& said, const transport::Options& options) {
  transport::Options back = options;
  auto resumable = std::make_unique<transport::ResumableConnection>(std::move(connection));
  resumable->start();
  back.session = resumable->session_resources();
  start.resumable = resumable.get();
  start.resume.timeout = std::chrono::milliseconds(said.resume_timeout_ms);
  start.resume.session_number = said.number;
  start.resume.welcome = [back](const server::ControlMessage& message, uint64_t received) {
    return welcome_back(message, received, back);
  };
  start.connection = std::move(resumable);
}

void accept_bulk_connections(SessionStart& start, const server::packet::Session& said, Control& control,
                             transport::Options options) {
  options.bulk = true;
  options.session = start.connection->session_resources();
  start.welcome_bulk = welcome_bulk;
  start.bulk_token.assign(said.bulk_token.data(), said.bulk_token.size());
  start.bulk_connections = [&control, options](BulkSink sink) {
    if (!sink) return control.handle(server::ControlKind::bulk, nullptr);
    control.handle(server::ControlKind::bulk, [options, sink](const server::ControlMessage& message) {
      const auto bulk = message.body<server::packet::Bulk>();
      if (auto connection = open_connection(bulk, message.descriptor, options))
        sink(std::move(*connection), bulk.from_peer != 0 ? std::optional(bulk.copy) : std::nullopt,
             bulk.link);
    });
  };
}

int client_is_gone(const server::packet::Session& said, const Error& why) {
  log::info("client_gone", {{"session", said.number}, {"reason", why.message}});
  return server::kWorkerHandoverFailed;
}

// Everything in SessionStart that does not depend on the connection.
void fill_in(SessionStart& start, Served& served, const server::packet::Session& said,
             const VisibleDevices& visible) {
  start.symbol = [&library = served.library](const char* name) { return library.symbol(name); };
  start.memory_use = std::move(served.memory_use);
  start.idle_context = served.idle_context;
  start.visible = visible;
  for (const control::Device& device : served.devices) start.granularity.push_back(device.granularity());
  start.range_base = served.range.base;
  start.range_size = served.range.size;
  start.dead_peer_timeout = std::chrono::milliseconds(said.dead_peer_timeout_ms);
  start.rdma = served.rdma;
  start.control = &served.control;
  start.server_id = said.server_id;
  start.session_number = said.number;
  start.oversubscribes = said.oversubscribes != 0;
  start.usage = served.usage;
  start.groups = std::move(served.groups);
  start.stop_descriptor = served.control.end_descriptor();
  // "always": stage copies as on devices whose memory the CPU cannot access
  const char* const staging = std::getenv("GPUPOOL_STAGING");
  start.direct_memory = staging == nullptr || std::strcmp(staging, "always") != 0;
}

}  // namespace

int serve(Served served, const server::ControlMessage& message) {
  const auto said = message.body<server::packet::Session>();
  transport::Options options;
  options.dead_peer_timeout = std::chrono::milliseconds(said.dead_peer_timeout_ms);
  options.rdma = served.rdma;
  auto connection = open_connection(said, message.descriptor, options);
  if (!connection) return client_is_gone(said, connection.error());
  const auto visible = visible_devices(said, served.devices.size());
  if (!visible) return server::kWorkerControlBroken;
  limit_memory(quota::Ledger(served.usage.account, served.usage.page, served.usage.slot), served.devices);
  limit_multiprocessors(served.groups, served.devices);

  SessionStart start;
  read_wishes(message.payload, start);
  control::HelloReply reply = describe_session(served, said, *visible, (*connection)->shares_memory());
  const bool resumes = can_resume(said, message.payload);
  if (resumes) {
    reply.set_resume_key(std::string(said.resume_key.data(), said.resume_key.size()));
    reply.set_resume_timeout_ms(static_cast<uint32_t>(said.resume_timeout_ms));
  }
  if (said.largest_image != 0 && ::getrandom(start.image_nonce.data(), start.image_nonce.size(), 0) ==
                                     static_cast<ssize_t>(start.image_nonce.size())) {
    start.largest_image = said.largest_image;
    reply.set_image_nonce(start.image_nonce.data(), start.image_nonce.size());
    reply.set_largest_image(said.largest_image);
  }
  reply.set_makes_timeline(start.wants_timeline);
  const auto deadline = transport::Clock::now() + options.dead_peer_timeout;
  if (auto sent = send_reply(**connection, reply, deadline); !sent) return client_is_gone(said, sent.error());
  if (auto upgraded = (*connection)->upgrade(transport::Side::server, deadline); !upgraded)
    return client_is_gone(said, upgraded.error());
  log::info(
      "session_running",
      {{"session", said.number}, {"client", (*connection)->peer()}, {"transport", (*connection)->carrier()}});
  fill_in(start, served, said, *visible);
  if (resumes)
    set_resumable(start, std::move(*connection), said, options);
  else
    start.connection = std::move(*connection);
  accept_bulk_connections(start, said, served.control, options);
  return run_session(std::move(start));
}

}  // namespace gpupool::worker
