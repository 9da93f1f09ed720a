// Tests programs and pool-smi with a server whose texts contain terminal control sequences.
#include <filesystem>
#include <thread>

#include "protocol/control/hello_codec.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/frame.h"
#include "tests/support/catch.h"
#include "tests/support/hostile_text.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

// Answers each hello with this reply and closes the connection.
class HostileServer {
 public:
  explicit HostileServer(hello::HelloReply reply) : reply_(std::move(reply)), thread_([this] { run(); }) {}
  ~HostileServer() {
    listener_->close();
    thread_.join();
  }
  std::string url() const { return listener_->endpoint().text(); }

 private:
  static std::unique_ptr<transport::Listener> listen() {
    auto listener = transport::listen({"tcp", "127.0.0.1", 0}, {});
    REQUIRE(listener);
    return std::move(*listener);
  }
  void run() {
    for (;;) {
      const auto connection = listener_->accept(std::nullopt);
      if (!connection) return;
      answer(**connection);
    }
  }
  void answer(transport::Connection& connection) const {
    const auto deadline = transport::Clock::now() + kPatience;
    wire::Preamble preamble;
    if (!transport::receive_exact(connection, std::as_writable_bytes(std::span(&preamble, 1)), deadline))
      return;
    std::string hello(preamble.length, '\0');
    if (!transport::receive_exact(connection, std::as_writable_bytes(std::span(hello)), deadline)) return;
    std::string text = hello::encode(reply_);
    preamble.length = static_cast<uint32_t>(text.size());
    const iovec parts[] = {{&preamble, sizeof preamble}, {text.data(), text.size()}};
    (void)transport::send_all(connection, parts, deadline);
  }

  const hello::HelloReply reply_;
  const std::unique_ptr<transport::Listener> listener_ = listen();
  std::thread thread_;
};

Environment environment(const HostileServer& server) {
  return {{"LD_LIBRARY_PATH",
           std::filesystem::path(program_path("pool-run")).parent_path().parent_path() / "lib" / "client"},
          {"GPUPOOL", server.url()},
          {"GPUPOOL_SHM", "0"}};
}

}  // namespace

TEST_CASE("a server's refusal is printed without control characters and with a length limit") {
  hello::HelloReply reply;
  reply.status = hello::Status::denied;
  reply.reason = kHostileText + std::string(40'000, 'x');
  const HostileServer server(reply);
  const Finished app = run_to_end({DEVICE_COUNT_APP}, environment(server));
  INFO(app.output);
  CHECK(app.status == 1);
  CHECK(app.output.find("refused: ?]0;owned?") != std::string::npos);
  CHECK(is_harmless(app.output));
  CHECK(app.output.size() < 4096);
}

TEST_CASE("pool-smi prints GPU names without control characters") {
  hello::HelloReply reply;
  reply.protocol_version = wire::kProtocolVersion;
  hello::Device& device = reply.devices.emplace_back();
  device.name = kHostileText;
  device.pci_bus_id = kHostileText;
  device.uuid = std::string(16, '\1');
  device.total_bytes = 1u << 30;
  const HostileServer server(reply);
  for (const char* const form : {"--list-gpus", "--json", "--query-gpu=name,pci.bus_id"}) {
    const Finished shown = run_to_end({program_path("pool-smi"), form}, environment(server));
    INFO(form << "\n" << shown.output);
    CHECK(shown.output.find("?]0;owned?") != std::string::npos);
    CHECK(is_harmless(shown.output));
  }
}
