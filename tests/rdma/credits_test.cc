#include "rdma/credits.h"

#include <algorithm>
#include <deque>
#include <random>

#include "tests/support/catch.h"

using gpupool::transport::rdma::Credits;
using gpupool::transport::rdma::kCountMask;
using gpupool::transport::rdma::kReserved;

namespace {

// Two sides and the messages between them. A message occupies a receive buffer from its sending until the
// buffer is posted again.
struct Model {
  struct Message {
    bool data;
    uint32_t count;
  };
  struct Side {
    Credits credits;
    std::deque<Message> coming;  // in flight to this side
    uint32_t unread = 0;         // received data messages that were not consumed
    uint32_t most_buffers = 0;
    uint64_t consumed = 0;
  };
  Side sides[2];
  uint32_t limits[2];  // data messages that each side accepts

  explicit Model(uint32_t first, uint32_t second)
      : sides{{Credits(first, second)}, {Credits(second, first)}}, limits{first, second} {}

  void count_buffers(int to) {
    Side& side = sides[to];
    side.most_buffers = std::max(side.most_buffers, static_cast<uint32_t>(side.coming.size()) + side.unread);
  }
  bool send(int from) {
    if (!sides[from].credits.can_send_message()) return false;
    sides[1 - from].coming.push_back({true, sides[from].credits.next_returned_count()});
    sides[from].credits.count_sent();
    count_buffers(1 - from);
    return true;
  }
  // The stream does this whenever it polls its completions.
  bool return_credits(int from) {
    if (!sides[from].credits.return_is_due()) return false;
    sides[1 - from].coming.push_back({false, sides[from].credits.next_returned_count()});
    count_buffers(1 - from);
    return true;
  }
  bool take(int at) {
    Side& side = sides[at];
    if (side.coming.empty()) return false;
    const Message message = side.coming.front();
    side.coming.pop_front();
    if (message.data) {
      REQUIRE(side.credits.count_received());
      ++side.unread;
    }
    REQUIRE(side.credits.take_returned_count(message.count));
    return true;
  }
  bool consume(int at) {
    Side& side = sides[at];
    if (side.unread == 0) return false;
    --side.unread;
    ++side.consumed;
    side.credits.count_consumed();
    return true;
  }
};

}  // namespace

TEST_CASE("every message finds a buffer for every order of events") {
  const uint32_t first = GENERATE(1u, 2u, 3u, 7u, 32u), second = GENERATE(1u, 2u, 5u, 64u);
  Model model(first, second);
  std::mt19937 random(first * 100 + second);
  for (int step = 0; step < 20'000; ++step) {
    const int side = static_cast<int>(random() % 2);
    // Long periods in which one side does not read reach the limits.
    const bool lazy = step / 2'000 % 3 == side;
    switch (random() % 4) {
      case 0: model.send(side); break;
      case 1:
        if (!lazy) model.take(side);
        break;
      case 2:
        if (!lazy) model.consume(side);
        break;
      case 3: model.return_credits(side); break;
    }
    for (int at = 0; at < 2; ++at)
      // Probe and end messages are not modelled.
      REQUIRE(model.sides[at].most_buffers <= model.limits[at] + kReserved - 2);
  }
  for (int at = 0; at < 2; ++at) CHECK(model.sides[at].most_buffers > model.limits[at] / 2);
}

TEST_CASE("at most two messages that return credits are in flight") {
  constexpr uint32_t kLimit = 8;
  Model model(kLimit, kLimit);
  while (model.send(0)) {
  }
  CHECK(model.sides[1].most_buffers == kLimit);
  for (uint32_t i = 0; i < kLimit; ++i) {
    REQUIRE(model.take(1));
    REQUIRE(model.consume(1));
    model.return_credits(1);
  }
  CHECK(model.sides[0].coming.size() == 2);
  CHECK_FALSE(model.return_credits(1));
}

TEST_CASE("neither side stalls while there is something to read") {
  const uint32_t first = GENERATE(1u, 2u, 3u, 32u), second = GENERATE(1u, 4u, 9u);
  Model model(first, second);
  constexpr uint64_t kMessages = 5'000;
  uint64_t sent[2] = {0, 0};
  std::mt19937 random(7);
  while (model.sides[0].consumed + model.sides[1].consumed < 2 * kMessages) {
    bool moved = false;
    for (int side = 0; side < 2; ++side) {
      if (sent[side] < kMessages && model.send(side)) {
        ++sent[side];
        moved = true;
      }
      if (random() % 3 == 0) continue;
      moved |= model.take(side);
      moved |= model.consume(side);
      moved |= model.return_credits(side);
    }
    // Messages that return credits need no credit, so one side can always make progress once everything is
    // received and consumed.
    if (!moved) {
      for (int side = 0; side < 2; ++side) {
        while (model.take(side)) moved = true;
        while (model.consume(side)) moved = true;
        moved |= model.return_credits(side);
      }
      REQUIRE(moved);
    }
  }
  CHECK(sent[0] == kMessages);
}

TEST_CASE("counts survive their wrap and impossible counts are rejected") {
  Credits credits(4, 4);
  Credits peer(4, 4);
  for (uint64_t message = 0; message < uint64_t{kCountMask} * 2; message += 4) {
    for (int i = 0; i < 4; ++i) {
      credits.count_sent();
      if (!peer.count_received()) FAIL("no credit at " << message);
      peer.count_consumed();
    }
    if (credits.can_send_message() || !credits.take_returned_count(peer.next_returned_count()) ||
        !credits.can_send_message())
      FAIL("wrong at " << message);
  }
  CHECK_FALSE(credits.take_returned_count(peer.next_returned_count() + 1));  // more than was sent
  CHECK_FALSE(credits.take_returned_count(peer.next_returned_count() - 1));  // less than before
  for (int i = 0; i < 4; ++i) CHECK(peer.count_received());
  CHECK_FALSE(peer.count_received());  // the fifth, without a credit
}
