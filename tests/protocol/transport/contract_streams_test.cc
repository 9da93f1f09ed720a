// Part two of the contract of every transport: data arrives complete and in order for all sizes, threads and
// amounts of backpressure.
#include <algorithm>
#include <random>
#include <thread>

#include "common/sanitizers.h"
#include "tests/protocol/transport/contract.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;
using Ready = Connection::Ready;

namespace {

// Bytes of a large transfer. Over RDMA in the emulated guest they are fewer, but still many times what the
// credits and the buffers of a connection hold (rdma/stream.h).
size_t many_bytes(const BackendUnderTest& backend) {
  const bool emulated = std::getenv("GPUPOOL_SOFTROCE") != nullptr;
  const bool few = kSanitized || (emulated && backend.scheme == "rdma" && backend.upgraded);
  return size_t{few ? 8u : 64u} << 20;
}

// Sends `out` in gather lists of irregular sizes.
Result<void> send_in_pieces(Connection& connection, const std::vector<std::byte>& out, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t at = 0; at < out.size();) {
    std::vector<iovec> pieces;
    for (int count = 0; count < 5 && at < out.size(); ++count) {
      const size_t size = std::min<size_t>(random() % 300'000, out.size() - at);
      pieces.push_back({const_cast<std::byte*>(out.data() + at), size});
      at += size;
    }
    if (auto sent = send_all(connection, pieces, in(kLong)); !sent) return sent;
  }
  return {};
}

}  // namespace

TEST_CASE("a gather list arrives in order even with empty or thousands of parts") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  std::vector<std::byte> bytes = pattern(5000, 1);
  std::vector<iovec> pieces(2000, iovec{nullptr, 0});
  for (auto& byte : bytes) {
    pieces.push_back({&byte, 1});
    pieces.push_back({nullptr, 0});
  }
  REQUIRE(send_all(*pair.client, pieces, in(kLong)));
  std::vector<std::byte> received(bytes.size());
  REQUIRE(receive_exact(*pair.server, received, in(kLong)));
  CHECK(received == bytes);
  // Sizes that are whole messages of transports that divide the stream into messages, with empty buffers
  // behind them.
  std::vector<std::byte> whole = pattern(64 * 1024, 2);
  const iovec parts[] = {{whole.data(), whole.size()}, {nullptr, 0}, {whole.data(), 0}};
  size_t sent = 0;
  while (sent < whole.size()) {
    const iovec rest[] = {{whole.data() + sent, whole.size() - sent}, parts[1], parts[2]};
    const auto step = pair.client->send_some(rest);
    REQUIRE(step);
    sent += *step;
    if (*step == 0) REQUIRE(pair.client->wait(false, true, in(kLong)));
  }
  received.resize(whole.size());
  REQUIRE(receive_exact(*pair.server, received, in(kLong)));
  CHECK(received == whole);
  CHECK(send_all(*pair.client, {}, in(kLong)));
  CHECK(receive_exact(*pair.server, {}, in(kLong)));
  const auto nothing = pair.client->send_some(std::span(pieces).first(2000));
  REQUIRE(nothing);
  CHECK(*nothing == 0);
}

TEST_CASE("full buffers accept partial sends and drain again") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  size_t total = fill(*pair.client);
  CHECK(total > 0);
  std::byte byte{};
  const iovec one{&byte, 1};
  const auto full = pair.client->send_some({&one, 1});
  REQUIRE(full);
  CHECK(*full == 0);
  std::vector<std::byte> sink(1 << 20);
  for (size_t left = total; left > 0;) {
    const auto ready = pair.server->wait(true, false, in(kLong));
    REQUIRE(ready);
    REQUIRE(*ready == Ready::receive);
    const auto received = pair.server->receive_some(std::span(sink).first(std::min(left, sink.size())));
    REQUIRE(received);
    left -= *received;
  }
  const auto again = pair.client->wait(false, true, in(kLong));
  REQUIRE(again);
  CHECK(*again == Ready::send);
  // The data that found no room must be sent first, because a transport may have begun to send it.
  const std::string block(64 * 1024, '\0');
  REQUIRE(send_text(*pair.client, block));
  CHECK(receive_text(*pair.server, block.size()) == block);
  REQUIRE(send_text(*pair.client, "after"));
  CHECK(receive_text(*pair.server, 5) == "after");
}

TEST_CASE("transfers data both ways at once with a sending and a receiving thread per side") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  const size_t size = many_bytes(backend);
  const auto up = pattern(size, 3);
  const auto down = pattern(size, 4);
  std::vector<std::byte> up_received(size);
  std::vector<std::byte> down_received(size);
  Result<void> results[4];
  std::thread threads[] = {
      std::thread([&] { results[0] = send_in_pieces(*pair.client, up, 1); }),
      std::thread([&] { results[1] = send_in_pieces(*pair.server, down, 2); }),
      std::thread([&] { results[2] = receive_exact(*pair.server, up_received, in(kLong)); }),
      std::thread([&] { results[3] = receive_exact(*pair.client, down_received, in(kLong)); }),
  };
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) REQUIRE(result);
  CHECK(are_same(up_received, up));
  CHECK(are_same(down_received, down));
}

TEST_CASE("one thread per side that sends and receives in turn never stalls") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  const auto exchange = [](Connection& connection, const std::vector<std::byte>& out,
                           std::vector<std::byte>& back) {
    size_t sent = 0;
    size_t received = 0;
    while (sent < out.size() || received < back.size()) {
      const auto ready = connection.wait(received < back.size(), sent < out.size(), in(kLong));
      if (!ready || *ready == Ready::none) return false;
      if (*ready != Ready::receive) {
        const iovec rest{const_cast<std::byte*>(out.data() + sent), out.size() - sent};
        const auto step = connection.send_some({&rest, 1});
        if (!step) return false;
        sent += *step;
      }
      if (*ready != Ready::send) {
        const auto step = connection.receive_some(std::span(back).subspan(received));
        if (!step) return false;
        received += *step;
      }
    }
    return true;
  };
  const auto up = pattern(many_bytes(backend) / 4, 5);
  const auto down = pattern(many_bytes(backend) / 4, 6);
  std::vector<std::byte> up_received(up.size());
  std::vector<std::byte> down_received(down.size());
  bool server_done = false;
  std::thread server([&] { server_done = exchange(*pair.server, down, up_received); });
  CHECK(exchange(*pair.client, up, down_received));
  server.join();
  CHECK(server_done);
  CHECK(are_same(up_received, up));
  CHECK(are_same(down_received, down));
}

TEST_CASE("interrupts from other threads disturb no transfer") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  const auto out = pattern(4u << 20, 7);
  std::vector<std::byte> back(out.size());
  Result<void> sent;
  std::atomic<bool> done{false};
  std::thread sender([&] { sent = send_in_pieces(*pair.client, out, 8); });
  std::thread pest([&] {
    while (!done.load()) {
      pair.client->interrupt();
      pair.server->interrupt();
      std::this_thread::yield();
    }
  });
  const auto received = receive_exact(*pair.server, back, in(kLong));
  sender.join();
  done.store(true);
  pest.join();
  CHECK(sent);
  CHECK(received);
  CHECK(are_same(back, out));
}

TEST_CASE("ping-pong of small messages") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  constexpr int kRounds = 500;
  bool echoed = true;
  std::thread server([&] {
    for (int round = 0; round < kRounds; ++round) {
      const std::string text = receive_text(*pair.server, 24);
      if (text.size() != 24 || !send_text(*pair.server, text)) echoed = false;
    }
  });
  bool same = true;
  for (int round = 0; round < kRounds; ++round) {
    std::string text = std::to_string(round);
    text.resize(24, '.');
    same = same && send_text(*pair.client, text) && receive_text(*pair.client, 24) == text;
  }
  server.join();
  CHECK(echoed);
  CHECK(same);
}
