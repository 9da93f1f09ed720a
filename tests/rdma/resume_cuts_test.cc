// Sessions over rdma whose connections are cut at random requests (docs/adr/0036-sessions-resume.md): every
// byte arrives once, every direct transfer completes once, and no write comes after its transfer was
// repeated.
#include <deque>
#include <random>

#include "common/sanitizers.h"
#include "tests/rdma/played_session.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;

namespace {

constexpr int kCuts = kSanitized ? 40 : 200;

// Moves data by direct transfers in both directions, and checks every byte when the transfers complete. Then
// the memory belongs to the program, which writes something else there that must stay.
class Mover {
 public:
  static constexpr size_t kSlots = 16, kBytes = 8192;

  explicit Mover(Line& line) : memory_(line, kSlots * kBytes), direct_(line.direct()), owned_(kSlots) {}

  // Runs until stop_, and until everything that was posted has completed.
  void run() {
    std::mt19937 random(11);
    while (problem_.empty()) {
      while (!stops && under_way_.size() < 4) post(static_cast<uint32_t>(random()));
      if (under_way_.empty()) break;
      const auto done = next_completion(direct_);
      if (!done) {
        problem_ = done.error().message;
      } else if (*done != under_way_.front().number) {
        problem_ = "completed out of order, or twice";
      } else {
        finish(under_way_.front());
        under_way_.pop_front();
      }
    }
  }
  std::string problem() {
    for (size_t slot = 0; slot < kSlots; ++slot) check_owned(slot);
    return problem_;
  }
  std::atomic<bool> stops{false};
  std::atomic<uint64_t> finished{0};

 private:
  struct Posted {
    uint64_t number;
    size_t slot;
    enum { read, write, flush } what;
    uint32_t seed;
  };
  std::byte* program(size_t slot) { return memory_.program.data() + slot * kBytes; }
  std::byte* worker(size_t slot) { return memory_.worker.data() + slot * kBytes; }
  bool holds(const std::byte* at, uint32_t seed) {
    const auto expected = pattern(kBytes, seed);
    return std::equal(expected.begin(), expected.end(), at);
  }
  void check_owned(size_t slot) {
    if (owned_[slot] != 0 && !holds(program(slot), owned_[slot])) problem_ = "a write came late";
  }
  void post(uint32_t seed) {
    const size_t slot = next_slot_++ % kSlots;
    check_owned(slot);
    owned_[slot] = 0;
    const bool reads = seed % 2 == 0;
    fill({worker(slot), kBytes}, reads ? seed + 1 : seed);
    fill({program(slot), kBytes}, reads ? seed : seed + 1);
    const auto transfer = memory_.transfer(slot * kBytes, kBytes, ++number_);
    under_way_.push_back({number_, slot, reads ? Posted::read : Posted::write, seed});
    if (!(reads ? direct_.read(transfer) : direct_.write(transfer))) problem_ = "a transfer was refused";
    if (reads) return;
    auto last = memory_.transfer(slot * kBytes + kBytes - 1, 1, ++number_);
    last.local = reinterpret_cast<std::byte*>(memory_.worker.data()) + slot * kBytes + kBytes - 1;
    under_way_.push_back({number_, slot, Posted::flush, seed});
    if (!direct_.flush(last)) problem_ = "a flush was refused";
  }
  void finish(const Posted& posted) {
    ++finished;
    if (posted.what == Posted::write) return;
    const bool reads = posted.what == Posted::read;
    if (!holds(reads ? worker(posted.slot) : program(posted.slot), posted.seed))
      problem_ = reads ? "a read brought wrong bytes" : "a write did not arrive";
    owned_[posted.slot] = posted.seed + 7;
    fill({program(posted.slot), kBytes}, owned_[posted.slot]);
  }

  Memory memory_;
  DirectMemory& direct_;
  std::deque<Posted> under_way_;
  std::vector<uint32_t> owned_;  // seed of what the program has written there; 0: nothing
  size_t next_slot_ = 0;
  uint64_t number_ = 0;
  std::string problem_;
};

// Sends pseudorandom bytes until `stops`, in irregular pieces, and then one piece that ends with a mark.
class Talker {
 public:
  static constexpr size_t kPeriod = 1 << 20;
  explicit Talker(uint32_t seed) : bytes_(pattern(kPeriod, seed)) {}

  void send(Connection& connection, const std::atomic<bool>& stops) {
    std::mt19937 random(1);
    while (!stops) {
      const size_t at = sent_ % kPeriod;
      const size_t size = std::min<size_t>(1 + random() % (random() % 8 == 0 ? 60'000 : 900), kPeriod - at);
      const iovec piece{bytes_.data() + at, size};
      if (!send_all(connection, {&piece, 1}, in(kLong))) return;
      sent_ += size;
    }
  }
  // Receives and checks until everything has arrived that is sent before `stops`.
  void receive(ResumableConnection& connection, ResumableConnection& peer, const std::atomic<bool>& stops) {
    std::vector<std::byte> got(50'000);
    for (uint64_t total = 0; !stops || total < sent_;) {
      const auto received = connection.receive_some(got);
      if (!received) break;
      if (*received == 0) {
        if (!connection.wait(true, false, in(milliseconds(20)))) break;
        continue;
      }
      for (size_t i = 0; i < *received; ++i) right_ &= got[i] == bytes_[(total + i) % kPeriod];
      total += *received;
      peer.acknowledge(connection.received());
      arrived_ = total;
    }
  }
  bool good() const { return right_ && arrived_ == sent_ && sent_ != 0; }

 private:
  std::vector<std::byte> bytes_;
  std::atomic<uint64_t> sent_{0}, arrived_{0};
  bool right_ = true;
};

// Receive buffers of both sides, after messages that only return credits, or test the connection, were taken.
size_t posted_buffers(const Line& line) {
  std::byte byte{};
  for (auto* const side : {line.client.get(), line.server.get()}) (void)side->receive_some({&byte, 1});
  return played::posted_buffers();
}

}  // namespace

TEST_CASE("bytes and direct transfers survive cuts at random requests") {
  Line line;
  const size_t buffers = posted_buffers(line);
  Mover mover(line);
  Talker up(1), down(2);
  std::atomic<bool> sending_over{false};
  std::atomic<bool> stops{false};
  std::vector<std::thread> senders, others;
  senders.emplace_back([&] { up.send(*line.client, stops); });
  senders.emplace_back([&] { down.send(*line.server, stops); });
  others.emplace_back([&] { up.receive(*line.server, *line.client, sending_over); });
  others.emplace_back([&] { down.receive(*line.client, *line.server, sending_over); });
  others.emplace_back([&] { mover.run(); });
  std::mt19937 random(3);
  std::string problem;
  size_t late = 0;
  for (int cut = 0; cut < kCuts && problem.empty(); ++cut) {
    const uint64_t before = mover.finished;
    if (cut % 4 == 0 && !comes_true([&] { return mover.finished > before; })) problem = "nothing moves";
    played::cut_after(1 + random() % 100, kFates[random() % std::size(kFates)]);
    if (!comes_true([] { return played::is_cut(); })) problem = "no cut";
    if (random() % 4 == 0) std::this_thread::sleep_for(milliseconds(random() % 4));
    played::mend();
    if (random() % 4 == 0) played::deliver_late();  // before the client has noticed the break
    if (const auto repaired = line.repair(); !repaired) problem = repaired.error().message;
    if (random() % 2 == 0) std::this_thread::sleep_for(milliseconds(random() % 3));
    late += played::deliver_late();
  }
  stops = true;
  mover.stops = true;
  if (!problem.empty()) {  // else the threads would wait for another carrier
    line.client->give_up({ErrorCode::lost, problem});
    line.server->give_up({ErrorCode::lost, problem});
  }
  for (std::thread& thread : senders) thread.join();
  sending_over = true;
  for (std::thread& thread : others) thread.join();
  CHECK(problem == "");
  CHECK(mover.problem() == "");
  CHECK(late == 0);
  CHECK(up.good());
  CHECK(down.good());
  // Nothing of broken connections is left.
  CHECK(played::queue_pairs() == 4);
  CHECK(comes_true([&] { return posted_buffers(line) == buffers; }));
}
