#include "tests/support/fake_worker.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "protocol/transport/tls/stream.h"
#include "tests/support/device_addresses.h"
#include "tests/support/processes.h"

namespace gpupool::testing {
namespace {

using transport::Connection;

transport::Deadline soon() {
  return transport::Clock::now() + kPatience;
}

// Distinct ranges, far from those that poold proposes, for each FakeWorker of this process and of a parent.
hello::AddressRange new_range() {
  constexpr uint64_t kSize = uint64_t{4} << 30;
  static std::atomic<uint64_t> next{kDeviceAddresses};
  return {next.fetch_add(2 * kSize), kSize};
}

bool send_to(Connection& connection, std::string_view bytes) {
  const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  return transport::send_all(connection, {&part, 1}, soon()).ok();
}

bool receive_from(Connection& connection, void* to, size_t size, transport::Deadline deadline) {
  return transport::receive_exact(connection, {static_cast<std::byte*>(to), size}, deadline).ok();
}

bool receive_from(transport::tls::Stream& stream, int socket, void* to, size_t size) {
  const auto deadline = transport::Clock::now() + kPatience;
  for (std::span<std::byte> rest(static_cast<std::byte*>(to), size); !rest.empty();) {
    const auto received = stream.receive_some(rest);
    if (!received || transport::Clock::now() > deadline) return false;
    rest = rest.subspan(*received);
    pollfd awaited{.fd = socket, .events = POLLIN, .revents = 0};
    if (stream.wants_to_send()) awaited.events = POLLOUT;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - transport::Clock::now());
    if (*received == 0) (void)::poll(&awaited, 1, std::max(0, static_cast<int>(left.count())));
  }
  return true;
}

// `receive` fills a buffer and returns false if it cannot.
template <class Receive>
std::optional<hello::Hello> receive_hello(const Receive& receive) {
  wire::Preamble preamble;
  if (!receive(&preamble, sizeof preamble)) return std::nullopt;
  std::string text(std::min(preamble.length, wire::kMaxHelloBytes), '\0');
  if (!receive(text.data(), text.size())) return std::nullopt;
  auto hello = hello::decode_hello(text);
  return hello ? std::optional(std::move(*hello)) : std::nullopt;
}

// Does poold's part of a TLS connection: receives the hello in the first TLS session and ends it. Replaces
// the connection by the worker's.
std::optional<hello::Hello> receive_hello_over_tls(
    std::unique_ptr<Connection>& connection, const std::shared_ptr<const transport::tls::Context>& context) {
  const int socket = connection->release_descriptor();
  auto stream = transport::tls::Stream::server(context, socket);
  std::optional<hello::Hello> hello;
  if (stream)
    hello = receive_hello([&](void* to, size_t size) { return receive_from(**stream, socket, to, size); });
  const auto secret = hello ? (*stream)->secret() : Error{};
  if (!secret) {
    ::close(socket);
    return std::nullopt;
  }
  (*stream)->end();
  transport::Options options;
  options.tls.secret.assign(secret->data(), secret->size());
  auto workers = transport::adopt("tls", socket, options);
  if (!workers) return std::nullopt;
  connection = std::move(*workers);
  return hello;
}

}  // namespace

hello::Device fake_device_description(const std::string& name, uint64_t bytes) {
  hello::Device device;
  device.name = name;
  device.uuid = std::string(16, '\x42');
  device.total_bytes = bytes;
  device.pci_bus_id = "0000:01:00.0";
  device.granularity = 2u << 20;
  device.attributes = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                       {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4}};
  return device;
}

FakeWorker::FakeWorker(const transport::TlsOptions& tls) {
  offer.protocol_version = wire::kProtocolVersion;
  offer.server_version = "fake";
  offer.driver_version = CUDA_VERSION;
  offer.session_id = "session of a fake";
  offer.devices = {fake_device_description("fake device")};
  offer.addresses = new_range();
  offer.worker_pid = ::getpid();
  if (!tls.certificate.empty()) {
    auto context = transport::tls::Context::server(tls);
    if (!context) throw std::runtime_error(context.error().message);
    tls_ = std::move(*context);
  }
  auto listener = transport::listen({tls_ ? "tls" : "tcp", "127.0.0.1", 0}, {});
  if (!listener) throw std::runtime_error(listener.error().message);
  listener_ = std::move(*listener);
  acceptor_ = std::thread([this] { accept(); });
}

FakeWorker::~FakeWorker() {
  listener_->close();
  acceptor_.join();
  for (const auto& connection : connections_) connection->close();
  for (auto& session : sessions_) session.join();
}

void FakeWorker::accept() {
  for (;;) {
    auto accepted = listener_->accept(std::nullopt);
    if (!accepted) return;
    std::unique_ptr<Connection> connection = std::move(*accepted);
    const auto hello =
        tls_ ? receive_hello_over_tls(connection, tls_) : receive_hello([&](void* to, size_t size) {
          return receive_from(*connection, to, size, soon());
        });
    if (hello) answer_hello(std::move(connection), *hello);
  }
}

void FakeWorker::answer_hello(std::unique_ptr<Connection> accepted, const hello::Hello& hello) {
  Connection& connection = *accepted;
  const std::string answer = hello::encode(offer);
  const wire::Preamble preamble{.length = static_cast<uint32_t>(answer.size())};
  const bool bulk = !hello.session_id.empty();
  const bool accepts = raw_answer.empty() && offer.status == hello::Status::ok && !close_after_hello;
  {
    // A connection has one sender at a time. The client can have the answer before send_to() returns, and the
    // test then sends to it: the lock has it wait.
    const std::lock_guard sending(send_mutex_);
    {
      const std::lock_guard lock(mutex_);
      connections_.push_back(std::move(accepted));
      hellos_.push_back(hello);
      if (accepts && !bulk) session_ = &connection;
    }
    (void)send_to(connection, raw_answer.empty() ? bytes_of(preamble) + answer : raw_answer);
  }
  if (accepts && bulk) {
    const std::lock_guard lock(mutex_);
    bulk_.push_back(&connection);
  }
  changed_.notify_all();
  if (!accepts)
    connection.close();
  else if (!bulk)
    sessions_.emplace_back([this, &connection] { serve(connection); });
}

bool FakeWorker::read_command(Connection& connection, ReceivedCommand* command) {
  if (!receive_from(connection, &command->header, sizeof command->header, std::nullopt)) return false;
  command->body.resize(command->header.length);
  return receive_from(connection, command->body.data(), command->body.size(), std::nullopt);
}

void FakeWorker::serve(Connection& connection) {
  ReceivedCommand command;
  while (read_command(connection, &command)) {
    {
      const std::lock_guard lock(mutex_);
      received_.push_back(command);
    }
    changed_.notify_all();
    handle(command);
  }
  const std::lock_guard lock(mutex_);
  ++closed_;
  changed_.notify_all();
}

void FakeWorker::handle(const ReceivedCommand& command) {
  Handler handler;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = handlers_.find(command.header.id); found != handlers_.end())
      handler = found->second;
  }
  handler ? handler(command) : answer_by_default(command);
}

void FakeWorker::answer_by_default(const ReceivedCommand& command) {
  const uint64_t sequence = command.header.sequence;
  const auto id = static_cast<wire::Command>(command.header.id);
  if (id == wire::Command::ping) return send(wire::MessageKind::pong, sequence);
  if (!(command.header.flags & wire::kWantsReply)) return;
  switch (id) {
    case wire::Command::map_memory: return reply(sequence, bytes_of(command.as<wire::MapMemory>().address));
    case wire::Command::retain_primary_context:
    case wire::Command::create_context: return reply(sequence, bytes_of(command.as<uint64_t>()));
    case wire::Command::move_addresses: {
      const auto wanted = command.as<wire::MoveAddresses>();
      return reply(sequence, bytes_of(wire::AddressRange{wanted.preferred_base, wanted.size}));
    }
    default: return reply(sequence);
  }
}

void FakeWorker::on(uint16_t id, Handler handler) {
  const std::lock_guard lock(mutex_);
  handlers_[id] = std::move(handler);
}

void FakeWorker::answer(uint16_t id, std::string body, CUresult result) {
  on(id, [this, body = std::move(body), result](const ReceivedCommand& command) {
    if (command.header.flags & wire::kWantsReply) reply(command.header.sequence, body, result);
  });
}

void FakeWorker::forget() {
  const std::lock_guard lock(mutex_);
  handlers_.clear();
  received_.clear();
}

std::vector<hello::Hello> FakeWorker::hellos() const {
  const std::lock_guard lock(mutex_);
  return hellos_;
}

std::vector<ReceivedCommand> FakeWorker::received() const {
  const std::lock_guard lock(mutex_);
  return received_;
}

std::vector<ReceivedCommand> FakeWorker::received(wire::Command command) const {
  auto all = received();
  std::erase_if(all, [&](const auto& one) { return one.header.id != static_cast<uint16_t>(command); });
  return all;
}

ReceivedCommand FakeWorker::await_command(uint16_t id, size_t index) const {
  std::unique_lock lock(mutex_);
  const ReceivedCommand* found = nullptr;
  const auto arrived = [&] {
    size_t before = 0;
    for (const ReceivedCommand& command : received_) {
      if (command.header.id == id && before++ == index) return found = &command, true;
    }
    return false;
  };
  if (!changed_.wait_for(lock, kPatience, arrived))
    throw std::runtime_error("the client did not send command " + std::to_string(id));
  return *found;
}

Connection& FakeWorker::session() const {
  const std::lock_guard lock(mutex_);
  if (!session_) throw std::runtime_error("the client has opened no session");
  return *session_;
}

void FakeWorker::reply(uint64_t sequence, std::string_view body, CUresult result) {
  send(wire::MessageKind::reply, sequence, body, result);
}

void FakeWorker::send(wire::MessageKind kind, uint64_t sequence, std::string_view body, CUresult result,
                      uint64_t retired, uint16_t flags) {
  const wire::MessageHeader header{.length = static_cast<uint32_t>(body.size()),
                                   .kind = kind,
                                   .flags = flags,
                                   .result = result,
                                   .sequence = sequence,
                                   .retired = retired};
  send_bytes(bytes_of(header).append(body));
}

void FakeWorker::send_bytes(std::string_view bytes) {
  Connection& connection = session();
  const std::lock_guard lock(send_mutex_);
  (void)send_to(connection, bytes);  // the client may have closed the connection
}

void FakeWorker::close() {
  session().close();
}

void FakeWorker::await_closed() const {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [this] { return closed_ != 0; }))
    throw std::runtime_error("the client did not close the session");
}

Connection& FakeWorker::bulk(size_t index) const {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [&] { return bulk_.size() > index; }))
    throw std::runtime_error("the client did not open the bulk connection");
  return *bulk_[index];
}

}  // namespace gpupool::testing
