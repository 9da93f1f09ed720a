// A worker's session in a thread of the test, the client's end of its connection, and the fake driver below
// it. For tests of worker commands and fuzz_commands; use it from one thread.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "protocol/calls/handles.h"
#include "protocol/images/name.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/writer.h"
#include "server/worker/session/control.h"
#include "server/worker/session/session_start.h"
#include "tests/server/worker/fake_driver.h"
#include "tests/support/fake_direct_memory.h"

namespace gpupool::worker::test {

struct Message {
  wire::MessageHeader header;
  std::vector<std::byte> body;
  std::string text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
  template <class T>
  T as(size_t offset = 0) const {
    T value{};
    if (offset + sizeof value <= body.size()) std::memcpy(&value, body.data() + offset, sizeof value);
    return value;
  }
};

// Encodes the values one after the other as a command's body.
template <class... T>
wire::Buffer bytes_of(const T&... values) {
  wire::Buffer buffer;
  wire::Writer writer(buffer);
  (writer.put(values), ...);
  return buffer;
}

constexpr uint64_t kContext = cuda::make_handle(cuda::Kind::context, 1, 1);
constexpr uint64_t stream_handle(uint32_t index) {
  return cuda::make_handle(cuda::Kind::stream, 1, 100 + index);
}
constexpr uint64_t event_handle(uint32_t index) {
  return cuda::make_handle(cuda::Kind::event, 1, 200 + index);
}

constexpr image::Nonce kImageNonce{std::byte{1}, std::byte{2}, std::byte{3}};

class TestClient {
 public:
  explicit TestClient(bool capture_output = false, Control* control = nullptr, uint64_t largest_image = 0,
                      bool shares_memory = false, testing::FakeDirectMemory* direct = nullptr,
                      bool staged = false, Usage usage = {},
                      const std::function<void(FakeDriver&)>& prepare = {},
                      const std::function<void(SessionStart&)>& adjust = {});
  ~TestClient();  // hangs up and waits for the session's end

  // Sends a command and returns its sequence number.
  uint64_t send(uint16_t id, const wire::Buffer& body, bool wants_reply = false, uint64_t context = kContext);
  uint64_t send(wire::Command id, const wire::Buffer& body, bool wants_reply = false,
                uint64_t context = kContext) {
    return send(static_cast<uint16_t>(id), body, wants_reply, context);
  }
  // Sends the call of the table with this name.
  uint64_t call(const char* name, const wire::Buffer& body, bool wants_reply = false,
                uint64_t context = kContext);
  // Adds a descriptor as if it had arrived with the bytes; needs `shares_memory`. The session closes it.
  void give_descriptor(int descriptor);
  void send_raw(const void* bytes, size_t size);
  void hang_up();  // stops sending; messages of the session can still be received

  // Returns the next message of any kind, with kind 0 at the end of the connection. Fails the test after
  // kPatience, which allows for busy machines.
  Message receive();
  // Returns the next message, which must be the reply to this command. Skips messages that say that functions
  // of a refused command are not called.
  Message reply(uint64_t sequence);
  CUresult result(uint64_t sequence) { return static_cast<CUresult>(reply(sequence).header.result); }
  // Sends with kWantsReply and returns the result.
  CUresult ask(wire::Command id, const wire::Buffer& body) { return result(send(id, body, true)); }
  CUresult ask(const char* name, const wire::Buffer& body) { return result(call(name, body, true)); }
  // True if nothing arrives within this time.
  bool silent(int milliseconds = 30);
  // Ends the session and returns its exit status; `end_reason` gets the text of its last message.
  int finish();
  void cut();  // as if the client's process had died

  void retain() {
    send(wire::Command::retain_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0}), false, 0);
  }
  void create_stream(uint32_t index, uint32_t flags = CU_STREAM_NON_BLOCKING);
  void record(uint32_t event, uint64_t stream);
  uint64_t address(uint64_t offset) const { return fake.range_base + offset; }
  void map(uint64_t offset, uint64_t size) {
    send(wire::Command::map_memory, bytes_of(wire::MapMemory{address(offset), size, 0, 0}));
  }
  uint64_t copy_in(uint64_t stream, uint64_t offset, const std::vector<std::byte>& data,
                   bool wants_reply = false);
  uint64_t copy_out(uint64_t stream, uint64_t offset, uint64_t size);
  // Returns the data of one copy, up to its reply. Other messages fail the test.
  std::vector<std::byte> data(uint64_t sequence, CUresult expected = CUDA_SUCCESS);
  wire::Buffer launch_body(uint64_t function, uint64_t stream, const wire::Buffer& parameters,
                           uint32_t flags = 0);

  FakeDriver fake;
  uint64_t next_sequence = 1;
  std::string end_reason;

 private:
  static constexpr std::chrono::milliseconds kPatience{60'000};
  bool await_bytes(std::chrono::milliseconds time);

  int socket_ = -1;
  std::mutex descriptors_mutex_;
  std::deque<int> descriptors_;
  std::future<int> session_;
};

std::vector<std::byte> pattern(size_t size, unsigned seed);

}  // namespace gpupool::worker::test
