#include "tests/server/worker/test_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "protocol/images/fatbin.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/copies.h"
#include "server/worker/handlers/call_rows.h"
#include "server/worker/session/run_session.h"

namespace gpupool::worker::test {
namespace {

// Throws, which fails a test and ends the fuzzer, which has no test framework.
void must(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

// transport::Connection over one end of a socket pair.
class PairConnection final : public transport::Connection {
 public:
  explicit PairConnection(int socket) : socket_(socket), wake_(::eventfd(0, EFD_NONBLOCK)) {}
  ~PairConnection() override {
    ::close(socket_);
    ::close(wake_);
  }
  Result<size_t> send_some(std::span<const iovec> buffers) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(buffers.data());
    message.msg_iovlen = buffers.size();
    const ssize_t sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN) return size_t{0};
    return Error{ErrorCode::lost, "lost"};
  }
  Result<size_t> receive_some(std::span<std::byte> buffer) override {
    const ssize_t received = ::recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (received > 0) return static_cast<size_t>(received);
    if (received < 0 && errno == EAGAIN) return size_t{0};
    return Error{ErrorCode::closed, "closed"};
  }
  Result<Ready> wait(bool for_receive, bool for_send, transport::Deadline deadline) override {
    int timeout = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - transport::Clock::now());
      timeout = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    const short events = static_cast<short>((for_receive ? POLLIN : 0) | (for_send ? POLLOUT : 0));
    pollfd polled[2] = {{events != 0 ? socket_ : -1, events, 0},
                        {for_receive || !for_send ? wake_ : -1, POLLIN, 0}};
    ::poll(polled, 2, timeout);
    if (polled[0].revents != 0) return for_receive ? Ready::receive : Ready::send;
    uint64_t count;
    if (polled[1].revents != 0) (void)!::read(wake_, &count, sizeof count);
    return Ready::none;
  }
  void interrupt() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  }
  void close() override {
    ::shutdown(socket_, SHUT_RDWR);
    if (direct) direct->break_connection();
  }
  transport::DirectMemory* direct_memory() override { return direct; }
  std::string peer() const override { return "test"; }
  int release_descriptor() override { return -1; }
  bool shares_memory() const override { return take_descriptor != nullptr; }
  Result<int> receive_descriptor(transport::Deadline) override {
    const int descriptor = take_descriptor ? take_descriptor() : -1;
    if (descriptor < 0) return Error{ErrorCode::malformed, "none was given"};
    return descriptor;
  }

  std::function<int()> take_descriptor;
  testing::FakeDirectMemory* direct = nullptr;

 private:
  const int socket_;
  const int wake_;
};

}  // namespace

TestClient::TestClient(bool capture_output, Control* control, uint64_t largest_image, bool shares_memory,
                       testing::FakeDirectMemory* direct, bool staged, Usage usage,
                       const std::function<void(FakeDriver&)>& prepare,
                       const std::function<void(SessionStart&)>& adjust) {
  if (prepare) prepare(fake);
  int ends[2];
  must(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no socket pair");
  socket_ = ends[0];
  SessionStart start;
  auto connection = std::make_unique<PairConnection>(ends[1]);
  if (shares_memory) {
    connection->take_descriptor = [this] {
      const std::lock_guard lock(descriptors_mutex_);
      if (descriptors_.empty()) return -1;
      const int descriptor = descriptors_.front();
      descriptors_.pop_front();
      return descriptor;
    };
  }
  connection->direct = direct;
  fake.stream_memory_operations = direct != nullptr;
  start.direct_memory = !staged;
  start.connection = std::move(connection);
  start.symbol = [this](const char* name) { return fake.symbol(name); };
  start.memory_use = [this](int) -> MemoryUse {
    switch (fake.tells_use) {
      case FakeDriver::TellsUse::of_process:
        return {.process = fake.contexts.empty() ? std::nullopt : std::optional(fake.used())};
      case FakeDriver::TellsUse::of_device: return {.device = fake.used()};
      default: return {};
    }
  };
  start.visible = worker::VisibleDevices::all(fake.devices);
  start.granularity = {FakeDriver::kGranularity};
  start.range_base = fake.range_base;
  start.range_size = fake.range_size;
  start.capture_output = capture_output;
  start.control = control;
  start.oversubscribes = control != nullptr && usage.page != nullptr;
  start.usage = std::move(usage);
  start.image_nonce = kImageNonce;
  start.largest_image = largest_image;
  if (adjust) adjust(start);
  session_ = std::async(std::launch::async,
                        [start = std::move(start)]() mutable { return run_session(std::move(start)); });
}

TestClient::~TestClient() {
  if (session_.valid()) finish();
  ::close(socket_);
  for (const int descriptor : descriptors_) ::close(descriptor);  // not taken by any command
}

void TestClient::give_descriptor(int descriptor) {
  const std::lock_guard lock(descriptors_mutex_);
  descriptors_.push_back(descriptor);
}

void TestClient::send_raw(const void* bytes, size_t size) {
  const auto* at = static_cast<const char*>(bytes);
  while (size != 0) {
    const ssize_t sent = ::send(socket_, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;  // the session has ended, which the test detects elsewhere
    at += sent;
    size -= static_cast<size_t>(sent);
  }
}

uint64_t TestClient::send(uint16_t id, const wire::Buffer& body, bool wants_reply, uint64_t context) {
  wire::CommandHeader header;
  header.length = static_cast<uint32_t>(body.size());
  header.id = id;
  header.flags = wants_reply ? wire::kWantsReply : 0;
  header.context = context;
  header.sequence = next_sequence++;
  auto frame = bytes_of(header);
  frame.insert(frame.end(), body.begin(), body.end());
  send_raw(frame.data(), frame.size());
  return header.sequence;
}

uint64_t TestClient::call(const char* name, const wire::Buffer& body, bool wants_reply, uint64_t context) {
  for (const CallRow& row : call_rows()) {
    if (std::string(row.name) == name) return send(row.id, body, wants_reply, context);
  }
  throw std::runtime_error(std::string("no row ") + name);
}

void TestClient::cut() {
  ::shutdown(socket_, SHUT_RDWR);
}
void TestClient::hang_up() {
  ::shutdown(socket_, SHUT_WR);
}

// Returns false if nothing arrives within that time. Signals, such as a fuzzer's alarms, do not interrupt it.
bool TestClient::await_bytes(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd polled{socket_, POLLIN, 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready >= 0 || errno != EINTR) return ready == 1;
  }
}

Message TestClient::receive() {
  Message message;
  message.header.kind = wire::MessageKind{0};
  const auto exactly = [&](void* to, size_t size) {
    auto* at = static_cast<char*>(to);
    while (size != 0) {
      must(await_bytes(kPatience), "the session sends nothing");
      const ssize_t got = ::recv(socket_, at, size, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  };
  wire::MessageHeader header;
  if (!exactly(&header, sizeof header)) return message;
  message.body.resize(header.length);
  if (!exactly(message.body.data(), message.body.size())) return message;
  message.header = header;
  return message;
}

Message TestClient::reply(uint64_t sequence) {
  Message message = receive();
  while (message.header.kind == wire::MessageKind::host_callback && message.header.result != CUDA_SUCCESS)
    message = receive();
  must(message.header.kind == wire::MessageKind::reply && message.header.sequence == sequence,
       "awaited the reply to " + std::to_string(sequence) + ", got kind " +
           std::to_string(static_cast<int>(message.header.kind)) + " of " +
           std::to_string(message.header.sequence));
  return message;
}

bool TestClient::silent(int milliseconds) {
  return !await_bytes(std::chrono::milliseconds(milliseconds));
}

int TestClient::finish() {
  hang_up();
  while (true) {
    const Message message = receive();
    if (message.header.kind == wire::MessageKind{0}) break;
    if (message.header.kind == wire::MessageKind::end) end_reason = message.text();
  }
  return session_.get();
}

void TestClient::create_stream(uint32_t index, uint32_t flags) {
  call("cuStreamCreateWithPriority", bytes_of(stream_handle(index), flags, int32_t{0}));
}

void TestClient::record(uint32_t event, uint64_t stream) {
  call("cuEventRecord", bytes_of(event_handle(event), stream));
}

uint64_t TestClient::copy_in(uint64_t stream, uint64_t offset, const std::vector<std::byte>& bytes,
                             bool wants_reply) {
  auto body =
      bytes_of(wire::CopyToDevice{stream, address(offset), 0, static_cast<uint32_t>(bytes.size()), 1});
  body.insert(body.end(), bytes.begin(), bytes.end());
  return send(wire::Command::copy_to_device, body, wants_reply);
}

uint64_t TestClient::copy_out(uint64_t stream, uint64_t offset, uint64_t size) {
  return send(wire::Command::copy_from_device,
              bytes_of(wire::CopyFromDevice{stream, address(offset), 0, size, 1}), true);
}

std::vector<std::byte> TestClient::data(uint64_t sequence, CUresult expected) {
  std::vector<std::byte> bytes;
  while (true) {
    const Message message = receive();
    must(message.header.sequence == sequence, "a message of another command than the copy");
    if (message.header.kind == wire::MessageKind::reply) {
      must(message.header.result == expected, "the copy ended with " + std::to_string(message.header.result));
      return bytes;
    }
    must(message.header.kind == wire::MessageKind::device_data, "a message of another kind than data");
    must(message.as<wire::DeviceData>().offset == bytes.size(), "data out of order");
    bytes.insert(bytes.end(), message.body.begin() + sizeof(wire::DeviceData), message.body.end());
  }
}

wire::Buffer TestClient::launch_body(uint64_t function, uint64_t stream, const wire::Buffer& parameters,
                                     uint32_t flags) {
  wire::Launch launch{};
  launch.function = function;
  launch.stream = stream;
  for (int i = 0; i < 3; ++i) launch.grid[i] = launch.block[i] = 1;
  launch.flags = flags;
  launch.parameter_bytes = static_cast<uint32_t>(parameters.size());
  auto body = bytes_of(launch);
  body.insert(body.end(), parameters.begin(), parameters.end());
  return body;
}

std::vector<std::byte> pattern(size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 31 + seed) ^ (i >> 8));
  return bytes;
}

}  // namespace gpupool::worker::test
