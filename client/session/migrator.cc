#include "client/session/migrator.h"

#include <algorithm>

#include "client/process/identity.h"
#include "client/process/process.h"
#include "client/timeline/timeline.h"
#include "protocol/control/hello_exchange.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/peers/proof.h"
#include "protocol/wire/reader.h"

namespace gpupool::client {
namespace {

using transport::Clock;
using Use = transport::RdmaOptions::Use;

constexpr std::chrono::milliseconds kLookForBreak{250};
// How long a server lets the client of a suspended session wait for an answer, and more.
constexpr std::chrono::seconds kSuspendedAnswerTime{15};

// Attributes in which GPUs of one kind differ: the PCI bus, device and domain.
bool is_of_place(int attribute) {
  return attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID || attribute == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID ||
         attribute == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID;
}

Result<void> compare_one(const hello::Device& known, const hello::Device& other, size_t number) {
  const auto differs = [&](const std::string& what) {
    return Error{ErrorCode::refused, "GPU " + std::to_string(number) + " there has another " + what};
  };
  if (known.name != other.name) return differs("name (" + other.name + " instead of " + known.name + ")");
  if (other.total_bytes < known.total_bytes) return differs("memory size");
  if (known.granularity != other.granularity) return differs("granularity of memory");
  if (known.attributes.size() != other.attributes.size()) return differs("number of attributes");
  for (size_t i = 0; i < known.attributes.size(); ++i) {
    const auto &one = known.attributes[i], &two = other.attributes[i];
    if (one.id != two.id || (one.value != two.value && !is_of_place(one.id)))
      return differs("attribute " + std::to_string(one.id));
  }
  return {};
}

// Returns nullopt if the lease has nothing at this address, and is not about to.
std::optional<std::string> token_in(const std::vector<LeasedServer>& servers, const std::string& address) {
  for (const LeasedServer& server : servers) {
    if (server.endpoint.text() == address) return server.token;
    if (!server.next.empty() && server.next.front().endpoint.text() == address)
      return server.next.front().token;
  }
  return std::nullopt;
}

// Returns why a session cannot be sent to a server by this route.
Error no_route(PeerRoute route) {
  const auto refused = [](const std::string& why) { return Error{ErrorCode::refused, why}; };
  const auto cannot_encrypt = [&](const std::string& which) {
    return refused("the " + which + "'s worker cannot encrypt the migration: it is of an older release");
  };
  switch (route) {
    case PeerRoute::exposes_key:
      return refused(
          "the key of the migration must not be sent to the source over an unencrypted connection");
    case PeerRoute::source_cannot_encrypt: return cannot_encrypt("source");
    case PeerRoute::target_cannot_encrypt: return cannot_encrypt("target");
    case PeerRoute::plain:
    case PeerRoute::encrypted:
    case PeerRoute::unreachable: break;
  }
  return refused("other servers cannot connect to it");
}

void name_suspended(hello::Hello& hello, Migrator::Suspended& suspended, uint32_t link) {
  hello.session_id = suspended.session_id;
  hello.bulk_link = link;
  hello.resume_attempt = ++suspended.attempts;
  const auto proof = peers::prove_resume(suspended.resume_key, link, hello.resume_attempt, 0);
  hello.resume_proof.assign(proof.begin(), proof.end());
}

}  // namespace

Result<Settings> settings_for(const std::string& address, Settings settings) {
  settings.server = address;
  auto servers = servers_now();
  // Without a lease the servers share the tenant's token.
  if (servers && std::ranges::all_of(*servers, [](const auto& server) { return server.token.empty(); }))
    return settings;
  // A lease that moves gets a token for the other server. The order to move may arrive earlier.
  servers = await_servers([&](const auto& now) { return token_in(now, address).has_value(); });
  if (!servers) return servers.error();
  auto token = token_in(*servers, address);
  if (!token) return Error{ErrorCode::refused, "the lease has no GPUs at " + address};
  settings.token = std::move(*token);
  return settings;
}

std::function<std::string()> present_token(const Settings& settings) {
  return [address = settings.server, token = settings.token]() mutable {
    if (const auto servers = servers_now()) {
      if (auto now = token_in(*servers, address); now && !now->empty()) token = std::move(*now);
    }
    return token;
  };
}

Result<std::unique_ptr<Migrator>> Migrator::open(const std::string& address, const Settings& settings) {
  auto server = transport::Endpoint::parse(address);
  if (!server) return server.error();
  if (server->scheme != "tcp" && server->scheme != "tls")
    return Error{
        ErrorCode::refused,
        "sessions can only move to tcp:// and tls:// addresses, because servers connect to each other"};
  auto migrator = connect(*server, settings);
  if (!migrator) return migrator;
  if (auto said = (*migrator)->say_hello(settings, nullptr); !said) return said.error();
  return migrator;
}

Result<std::unique_ptr<Migrator>> Migrator::come_back(const std::string& address, const Settings& settings,
                                                      Suspended& suspended) {
  auto server = transport::Endpoint::parse(address);
  if (!server) return server.error();
  auto migrator = connect(*server, settings);
  if (!migrator) return migrator;
  if (auto said = (*migrator)->say_hello(settings, &suspended); !said) return said.error();
  return migrator;
}

Result<std::unique_ptr<Migrator>> Migrator::connect(const transport::Endpoint& server,
                                                    const Settings& settings) {
  transport::Options options;
  options.connect_timeout = settings.connect_timeout;
  options.dead_peer_timeout = settings.dead_peer_timeout;
  options.rdma.use = Use::never;
  options.tls = settings.tls;
  options.prefer_shared_memory = settings.shared_memory && settings.carrier == Carrier::automatic;
  std::unique_ptr<Migrator> migrator(new Migrator(server, options, settings));
  auto carrier = transport::connect(server, options);
  if (!carrier) return carrier.error();
  migrator->connection_ = std::make_unique<transport::ResumableConnection>(std::move(*carrier));
  return migrator;
}

Result<void> Migrator::forget(const std::string& address, const Settings& settings, Suspended& suspended) {
  auto server = transport::Endpoint::parse(address);
  if (!server) return server.error();
  auto migrator = connect(*server, settings);
  if (!migrator) return migrator.error();
  hello::Hello hello = introduction();
  hello.tenant = settings.tenant;
  hello.token = settings.token;
  name_suspended(hello, suspended, wire::kForgetsLink);
  const auto deadline = Clock::now() + settings.connect_timeout;
  const auto reply = hello::exchange_patiently(*(*migrator)->connection_, hello, deadline);
  return reply ? Result<void>() : reply.error();
}

Result<void> Migrator::say_hello(const Settings& settings, Suspended* suspended) {
  hello::Hello hello = introduction();
  hello.tenant = settings.tenant;
  hello.token = settings.token;
  hello.compression = static_cast<uint32_t>(settings.compression);
  hello.takes_quota_refusals = true;
  hello.can_resume = true;
  hello.can_migrate = true;
  hello.wants_timeline = timeline::on();
  if (suspended) name_suspended(hello, *suspended, wire::kReturnsLink);
  if (suspended) hello.failure = suspended->failure;
  const auto deadline = Clock::now() + settings.connect_timeout + settings.dead_peer_timeout +
                        (suspended ? kSuspendedAnswerTime : std::chrono::seconds(0));
  auto reply = suspended ? hello::exchange_patiently(*connection_, hello, deadline)
                         : hello::exchange(*connection_, hello, deadline);
  if (!reply) return reply.error();
  reply_ = std::move(*reply);
  if (suspended) suspended->failure.clear();
  if (reply_.status != hello::Status::ok) return {};
  if (auto upgraded = connection_->upgrade(transport::Side::client, deadline); !upgraded) return upgraded;
  if (reply_.resume_timeout_ms == 0)
    return Error{ErrorCode::refused, "its sessions cannot be resumed; see --resume-timeout of poold"};
  connection_->start();
  connection_->keep_deadlines();
  return {};
}

Result<void> Migrator::compare(const std::vector<hello::Device>& known, int driver_version) const {
  if (reply_.driver_version != driver_version) {
    return Error{ErrorCode::refused, "it has version " + std::to_string(reply_.driver_version) +
                                         " of the driver API instead of " + std::to_string(driver_version)};
  }
  if (reply_.devices.size() != known.size())
    return Error{ErrorCode::refused, "it gives another number of GPUs"};
  for (size_t i = 0; i < known.size(); ++i) {
    if (auto same = compare_one(known[i], reply_.devices[i], i); !same) return same;
  }
  return {};
}

Result<void> Migrator::ask_to_adopt() {
  wire::CommandHeader header{.id = static_cast<uint16_t>(wire::Command::adopt_session),
                             .flags = wire::kWantsReply,
                             .sequence = wire::kAdoptSequence};
  const iovec part{&header, sizeof header};
  return transport::send_all(*connection_, {&part, 1}, Clock::now() + options_.dead_peer_timeout);
}

Result<wire::PeerTarget> Migrator::target(const PeerEnd& source, bool same_server) const {
  const PeerEnd end = make_peer_end(reply_, server_, connection_->peer());
  const PeerRoute route = choose_peer_route(source, end, same_server);
  if (!is_usable(route)) return no_route(route);
  wire::PeerTarget target = make_peer_target(end, route);
  target.copy = wire::kAdoptSequence;
  target.key = peers::copy_key(reply_.bulk_token, wire::kAdoptSequence);
  return target;
}

Result<void> Migrator::receive(std::span<std::byte> buffer, Clock::time_point deadline) {
  while (!buffer.empty()) {
    const auto got = connection_->receive_some(buffer);
    if (!got) return got.error();
    buffer = buffer.subspan(*got);
    if (*got != 0) continue;
    const auto now = Clock::now();
    if (connection_->broken()) return Error{ErrorCode::lost, "the connection broke"};
    if (now >= deadline) return Error{ErrorCode::lost, "it does not answer"};
    const auto ready = connection_->wait(true, false, std::min(deadline, now + kLookForBreak));
    if (!ready) return ready.error();
  }
  return {};
}

Result<uint64_t> Migrator::adopted(std::chrono::seconds longest) {
  const auto deadline = Clock::now() + longest;
  while (true) {
    wire::MessageHeader header;
    auto got = receive(std::as_writable_bytes(std::span(&header, 1)), deadline);
    if (!got) return got.error();
    if (header.length > wire::kMaxBodyBytes) return Error{ErrorCode::malformed, "its message is too long"};
    std::vector<std::byte> body(header.length);
    if (got = receive(body, deadline); !got) return got.error();
    if (header.acknowledged != 0) connection_->acknowledge_low(header.acknowledged);
    wire::Reader reader(body);
    if (header.kind == wire::MessageKind::end)
      return Error{ErrorCode::refused, std::string(reinterpret_cast<const char*>(body.data()), body.size())};
    if (header.kind == wire::MessageKind::migration_wish) {
      if (body.size() < sizeof(wire::MigrationWish))
        return Error{ErrorCode::malformed, "its request to migrate is malformed"};
      wish_ = std::move(body);
      continue;
    }
    if (header.kind != wire::MessageKind::reply || header.sequence != wire::kAdoptSequence)
      continue;  // a sign of life
    if (header.result != CUDA_SUCCESS) return Error{ErrorCode::refused, std::string(reader.get_text())};
    const auto answer = reader.get<wire::AdoptedSession>();
    if (!reader.finished()) return Error{ErrorCode::malformed, "its answer is malformed"};
    return answer.sequence;
  }
}

}  // namespace gpupool::client
