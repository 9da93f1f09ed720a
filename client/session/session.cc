#include "client/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "client/memory/address_offer.h"
#include "client/process/identity.h"
#include "client/process/log.h"
#include "client/session/migrator.h"
#include "client/session/quota_refusals.h"
#include "client/timeline/timeline.h"
#include "protocol/calls/errors.h"
#include "protocol/control/hello_exchange.h"
#include "protocol/transport/rdma_options.h"
#include "protocol/wire/reader.h"

namespace gpupool::client {
namespace {

using transport::Clock;
using Use = transport::RdmaOptions::Use;

transport::Options options_of(const Settings& settings) {
  transport::Options options;
  options.connect_timeout = settings.connect_timeout;
  options.dead_peer_timeout = settings.dead_peer_timeout;
  options.rdma = settings.rdma;
  options.tls = settings.tls;
  return options;
}

// rdma:// and shm:// addresses determine the transport; for tcp:// GPUPOOL_TRANSPORT does.
Use rdma_for(const Settings& settings, const std::string& scheme) {
  if (scheme == "rdma" || (scheme == "tcp" && settings.carrier == Carrier::rdma)) return Use::always;
  const bool may = scheme == "tcp" && settings.carrier == Carrier::automatic && transport::has_rdma_device();
  return may ? Use::if_possible : Use::never;
}

// Several connections help if one core cannot fill the link; RDMA devices do not need that.
unsigned usual_bulk_connections(bool over_rdma) {
  return over_rdma ? 1 : std::clamp(std::thread::hardware_concurrency() / 2, 1u, 4u);
}

}  // namespace

Session::Session(const Settings& settings, std::unique_ptr<transport::Connection> connection)
    : settings_(settings),
      connection_(std::make_unique<transport::ResumableConnection>(std::move(connection))),
      receiver_(
          *connection_, settings.dead_peer_timeout,
          {.ping = [this] { ping(); },
           .host_callback =
               [this](uint64_t callback, uint64_t command, CUresult result) {
                 if (host_callback_) host_callback_(*this, callback, command, result);
               },
           .retired = [this](uint64_t sequence) { addresses_.retired(sequence); },
           .failed = [this](const Error& error) { fail(error); },
           .quota_refused =
               [this](std::span<const std::byte> refusal) {
                 return quota_refusals().note(refusal, server());
               },
           .received =
               [this] {
                 if (connection_->acknowledgement_due()) queue_.wake_flusher();
               },
           .acknowledged = [this](uint32_t low) { connection_->acknowledge_low(low); },
           .migration_wished = [this](std::span<const std::byte> wish) { return on_migration_wish(wish); },
           .timeline_received =
               [this](std::span<const std::byte> body) { return take_timeline_message(body); },
           .server = settings.index}),
      queue_(
          *connection_, settings.dead_peer_timeout,
          {.wait_for_room = [this](Clock::time_point deadline) { return receiver_.wait_for_room(deadline); },
           .failed = [this](const Error& error) { fail(error); },
           .acknowledgement = [this] { return acknowledgement(); },
           .before_flush = [this] { read_acknowledgements(); },
           .server = settings.index}),
      reconnector_(*connection_,
                   [this](bool read) { read ? receiver_.add_interest() : receiver_.drop_interest(); }),
      links_(receiver_, [this](const Error& error) { fail(error); }),
      server_(&settings_.server) {}

Result<std::unique_ptr<Session>> Session::open(const Settings& settings,
                                               const transport::Endpoint& endpoint) {
  transport::Options options = options_of(settings);
  options.rdma.use = rdma_for(settings, endpoint.scheme);
  options.prefer_shared_memory = settings.shared_memory && settings.carrier == Carrier::automatic;
  if (endpoint.scheme == "tls" && settings.carrier == Carrier::rdma) {
    return Error{ErrorCode::invalid,
                 "GPUPOOL_TRANSPORT=rdma: not possible with a tls:// address, because rdma is not encrypted; "
                 "use rdma:// in a "
                 "trusted network"};
  }
  if (options.rdma.use == Use::always && !transport::has_rdma_device()) {
    return Error{ErrorCode::unavailable,
                 std::string(endpoint.scheme == "rdma" ? "an rdma:// address" : "GPUPOOL_TRANSPORT=rdma") +
                     " needs an RDMA device, and this machine has none (or its driver is not loaded); "
                     "use a tcp:// address with GPUPOOL_TRANSPORT=auto"};
  }
  transport::Endpoint server = endpoint;
  if (options.rdma.use != Use::never) server.scheme = "rdma";
  auto connection = transport::connect(server, options);
  if (!connection) return connection.error();
  std::unique_ptr<Session> session(new Session(settings, std::move(*connection)));
  if (auto hello = session->say_hello(server, options); !hello) return hello.error();
  return session;
}

Result<void> Session::say_hello(const transport::Endpoint& server, const transport::Options& options) {
  hello::Hello hello = introduction();
  hello.tenant = settings_.tenant;
  hello.token = settings_.token;
  hello.compression = static_cast<uint32_t>(settings_.compression);
  hello.rdma = static_cast<uint32_t>(options.rdma.use);
  hello.takes_quota_refusals = true;
  hello.can_resume = true;
  hello.can_resume_rdma = true;
  hello.can_migrate = true;
  hello.wants_timeline = timeline::on();
  const auto deadline = Clock::now() + settings_.connect_timeout + settings_.dead_peer_timeout;
  const auto reply = hello::exchange(*connection_, hello, deadline);
  if (!reply) return reply.error();
  if (auto upgraded = connection_->upgrade(transport::Side::client, deadline); !upgraded)
    return upgraded.error();
  driver_version_ = reply->driver_version;
  offered_ = reply->devices;
  server_id_ = reply->server_id;
  receiver_.set_memory_limited(!offered_.empty() && offered_.front().memory_limited);
  proposed_ = {reply->addresses.base, reply->addresses.size};
  take_image_terms(*reply);
  // If the session stays on TCP, so do its bulk connections.
  const bool over_rdma = connection_->direct_memory() != nullptr;
  links_.configure(bulk_parameters(*reply, server, *connection_, over_rdma));
  if (reply->resume_timeout_ms != 0) start_resuming(*reply, server, options);
  if (timeline::on()) begin_timeline(*reply);
  if (!reply->bulk_token.empty()) registered_.start(connection_->direct_memory(), {});
  const bool unasked =
      server.scheme == "tcp" && settings_.carrier == Carrier::automatic && !connection_->shares_memory();
  log_debug("session with %s over %s%s: worker %lld, %zu device(s)", settings_.server.c_str(),
            connection_->carrier().c_str(), unasked ? " (no rdma: this machine has no RDMA device)" : "",
            static_cast<long long>(reply->worker_pid), offered_.size());
  return {};
}

void Session::take_image_terms(const hello::HelloReply& reply) {
  const std::lock_guard lock(server_mutex_);
  const bool keeps = reply.image_nonce.size() == image_nonce_.size();
  if (keeps) std::memcpy(image_nonce_.data(), reply.image_nonce.data(), image_nonce_.size());
  largest_image_ = keeps ? reply.largest_image : 0;
}

BulkConnections::Parameters Session::bulk_parameters(const hello::HelloReply& reply,
                                                     const transport::Endpoint& server,
                                                     const transport::Connection& connection,
                                                     bool over_rdma) const {
  transport::Options bulk = options_of(settings_);
  if (over_rdma) bulk.session = connection.session_resources();
  bulk.rdma.use = over_rdma ? Use::always : Use::never;
  transport::Endpoint bulk_server = server;
  if (server.scheme == "rdma") bulk_server.scheme = "tcp";
  const unsigned requested = settings_.bulk_connections.value_or(usual_bulk_connections(over_rdma));
  return {.server = bulk_server,
          .options = bulk,
          .connections = std::min(reply.bulk_connections, requested),
          .compression = reply.takes_compressed ? settings_.compression : compression::Policy::off,
          .peer_end = make_peer_end(reply, server, connection.peer())};
}

Reconnector::Terms Session::resume_terms(const hello::HelloReply& reply, const transport::Endpoint& server,
                                         const transport::Options& options, const Settings& settings) const {
  hello::Hello hello = introduction();
  hello.tenant = settings.tenant;
  hello.rdma = static_cast<uint32_t>(options.rdma.use);
  hello.session_id = reply.session_id;
  return {.server = server,
          .options = options,
          .hello = std::move(hello),
          .token = present_token(settings),
          .resume_key = reply.resume_key,
          .timeout = std::chrono::milliseconds(reply.resume_timeout_ms),
          .name = settings.server,
          .server_index = settings.index};
}

void Session::start_resuming(const hello::HelloReply& reply, const transport::Endpoint& server,
                             const transport::Options& options) {
  transport::Options again = options;
  again.session = connection_->session_resources();
  // Keys in commands under way are void on another transport, and a session without rdma has no use for it.
  again.rdma.use = again.session ? Use::always : Use::never;
  again.prefer_shared_memory &= !again.session;
  const Reconnector::Terms terms = resume_terms(reply, server, again, settings_);
  remember_home(reply);
  links_.resume_with(terms);
  reconnector_.start(terms);
}

void Session::remember_home(const hello::HelloReply& reply) {
  const std::lock_guard lock(server_mutex_);
  session_id_ = reply.session_id;
  resume_key_ = reply.resume_key;
  resume_timeout_ = std::chrono::milliseconds(reply.resume_timeout_ms);
}

// Called when a batch is about to be sent.
std::optional<wire::Acknowledge> Session::acknowledgement() {
  if (!connection_->started()) return std::nullopt;
  const bool leaving = leaving_.exchange(false, std::memory_order_relaxed);
  if (!leaving && !connection_->acknowledgement_due()) return std::nullopt;
  return wire::Acknowledge{
      .received = connection_->tell_received(), .leaving = leaving ? 1u : 0u, .reserved = 0};
}

// A program that only launches reads no messages, and the server's acknowledgements are in them.
void Session::read_acknowledgements() {
  constexpr uint64_t kMuchUnacknowledged = 4u << 20;
  if (connection_->unacknowledged() > kMuchUnacknowledged) receiver_.read_some();
}

void Session::say_leaving() {
  if (failed() || !connection_->started()) return;
  leaving_.store(true, std::memory_order_relaxed);
  queue_.try_flush();
}

void Session::leave() {
  say_leaving();
  if (failed_.exchange(true, std::memory_order_acq_rel)) return;
  receiver_.fail();
  connection_->close();
  links_.fail();
}

Result<void> Session::take_addresses() {
  if (offered_.empty()) return {};
  const uint64_t granularity = granularity_of(offered_.front());
  return agree_on_addresses(
      addresses_, proposed_, granularity,
      [this](const wire::MoveAddresses& request) -> std::optional<wire::AddressRange> {
        wire::Buffer reply;
        if (call(wire::Command::move_addresses, nullptr, request, reply) != CUDA_SUCCESS) return std::nullopt;
        wire::Reader reader(reply);
        const auto range = reader.get<wire::AddressRange>();
        return reader.finished() ? std::optional(range) : std::nullopt;
      });
}

uint64_t Session::mint(Kind kind, std::unique_ptr<Object> object) {
  if (!object) object = std::make_unique<Object>();
  object->session = this;
  return client::handles().mint(kind, std::move(object));
}

CUresult Session::before_call(Context* context) {
  if (failed()) return failure();
  if (!context) return CUDA_SUCCESS;
  if (!context->active.load(std::memory_order_relaxed)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->root && context->root_epoch != context->root->epoch.load(std::memory_order_relaxed))
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (const int sticky = context->sticky_error.load(std::memory_order_relaxed))
    return static_cast<CUresult>(sticky);
  return context->on_server.load(std::memory_order_acquire) ? CUDA_SUCCESS : ensure_on_server(*context);
}

CUresult Session::finish_call(Context* context, Waiter& waiter, wire::Buffer& reply) {
  const trace::Timer timer;
  if (!receiver_.wait(waiter)) return failure();
  if (timer) [[unlikely]]
    trace::count_round_trip(waiter.id, sizeof(wire::MessageHeader) + waiter.body.size(), timer.passed(),
                            index());
  reply = std::move(waiter.body);
  if (!context) return waiter.result;
  if (cuda::is_sticky(waiter.result)) context->sticky_error = waiter.result;
  if (waiter.result != CUDA_SUCCESS || context->late_error.load(std::memory_order_relaxed) == 0)
    return waiter.result;
  return static_cast<CUresult>(context->late_error.exchange(0));
}

CUresult Session::share_host_memory(Context& context, int descriptor, const wire::ShareHostMemory& memory,
                                    bool* taken, uint64_t* device) {
  *taken = false;
  if (const CUresult early = before_call(&context); early != CUDA_SUCCESS) return early;
  std::lock_guard lock(share_mutex_);
  if (auto sent = connection_->send_descriptor(descriptor, Clock::now() + settings_.dead_peer_timeout);
      !sent) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // The descriptor has been sent, so its command must follow, even if the context is lost.
  Waiter waiter;
  queue_.append(
      static_cast<uint16_t>(wire::Command::share_host_memory), wire::kWantsReply, handle_of(&context),
      [&](wire::Writer& writer) { writer.put(memory); },
      [&](uint64_t number) {
        waiter.sequence = number;
        receiver_.expect(waiter);
      });
  queue_.flush();
  wire::Buffer reply;
  const CUresult result = finish_call(&context, waiter, reply);
  wire::Reader reader(reply);
  const auto at = reader.get<wire::SharedHostMemoryAt>();
  *taken = reader.finished() && at.memory == memory.memory;
  if (*taken) *device = at.device;
  return result;
}

// While a migration holds commands back, its own command must stay the last; the server shows that it works
// on it.
void Session::ping() {
  if (queue_.holds_back()) return;
  queue_.append(
      static_cast<uint16_t>(wire::Command::ping), wire::kWantsReply, 0, [](wire::Writer&) {},
      [](uint64_t) {});
  queue_.try_flush();
}

void Session::abandon() {
  if (const int descriptor = connection_->release_descriptor(); descriptor >= 0) close(descriptor);
  links_.abandon();
}

void Session::fail(const Error& error) {
  {
    const std::lock_guard lock(closing_);
    if (!why_) why_ = error.message;  // keep the first error; later ones only report our own close
    // Close before any thread sees the failure: the server must no longer write to memory that then belongs
    // to the program.
    if (connection_->direct_memory()) connection_->close();
  }
  if (failed_.exchange(true, std::memory_order_acq_rel)) return;
  log_error("lost the connection to server %s: %s; CUDA calls on its devices now fail", server().c_str(),
            why_->c_str());
  receiver_.fail();
  connection_->close();
  links_.fail();
  if (host_callback_) host_callback_(*this, 0, 0, failure());
}

}  // namespace gpupool::client
