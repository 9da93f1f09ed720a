// Tests the rounds in which memory travels, with host memory in place of device memory that the CPU can read:
// what is sent in which round, and that no thread reads memory that is gone.
#include "server/worker/migration/memory_rounds.h"

#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <thread>

#include "protocol/wire/copies.h"
#include "protocol/wire/reader.h"
#include "tests/support/catch.h"

namespace gpupool::worker {
namespace {

constexpr uint64_t kBlocks = 40, kBytes = kBlocks * kHashedBlock;

// A target that keeps what it gets, and calls `receives` for each command.
class Target final : public transport::Connection {
 public:
  Target(std::vector<std::byte>& got, const std::function<void()>& receives)
      : got_(got), receives_(receives) {}
  Result<size_t> send_some(std::span<const iovec> parts) override {
    size_t bytes = 0;
    for (const iovec& part : parts) {
      const auto* const from = static_cast<const std::byte*>(part.iov_base);
      got_.insert(got_.end(), from, from + part.iov_len);
      bytes += part.iov_len;
    }
    if (receives_) receives_();
    return bytes;
  }
  Result<size_t> receive_some(std::span<std::byte>) override { return size_t{0}; }
  Result<Ready> wait(bool, bool, transport::Deadline) override { return Ready::send; }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "target"; }
  int release_descriptor() override { return -1; }

 private:
  std::vector<std::byte>& got_;
  const std::function<void()>& receives_;
};

// Pages that are returned to the system when they are unmapped.
struct Memory {
  explicit Memory(uint64_t bytes = kBytes) : size(bytes) {
    bytes_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(bytes_ != MAP_FAILED);
    for (uint64_t i = 0; i < size; i += 512) bytes_[i] = std::byte(i >> 9);
  }
  ~Memory() { unmap(); }
  Memory(const Memory&) = delete;
  void unmap() {
    if (bytes_) ::munmap(std::exchange(bytes_, nullptr), size);
  }
  uint64_t address() const { return reinterpret_cast<uint64_t>(bytes_); }
  std::byte& operator[](uint64_t i) { return bytes_[i]; }
  MemoryRounds::Range range() const { return {address(), size, 7, nullptr, true}; }
  const uint64_t size;

 private:
  std::byte* bytes_;
};

struct Rounds {
  Rounds() { stream.take(std::make_unique<Target>(got, receives)); }
  // As a program that makes an object.
  void add_command() { stream.add({.header = {.id = 1}, .body = std::vector<std::byte>(8)}); }
  void run() { REQUIRE(rounds.run(stream, stop)); }
  uint64_t finish() {
    uint64_t bytes = 0;
    REQUIRE(rounds.finish(stream, skips_zeros, &bytes));
    return bytes;
  }
  // Applies the copies that the target has got since the last call to `copy`. Returns their bytes.
  uint64_t apply_to(std::vector<std::byte>& copy, uint64_t base) {
    uint64_t applied = 0;
    for (size_t at = 0; at < got.size();) {
      wire::CommandHeader header;
      std::memcpy(&header, got.data() + at + sizeof(wire::AdoptedCommand), sizeof header);
      at += sizeof(wire::AdoptedCommand) + sizeof header;
      REQUIRE(header.id == static_cast<uint16_t>(wire::Command::copy_to_device));
      CHECK(header.context == 7);
      wire::CopyToDevice body;
      std::memcpy(&body, got.data() + at, sizeof body);
      REQUIRE(body.destination >= base);
      REQUIRE(body.destination - base + body.width <= copy.size());
      std::memcpy(copy.data() + (body.destination - base), got.data() + at + sizeof body, body.width);
      applied += body.width;
      at += header.length;
    }
    got.clear();
    return applied;
  }
  std::vector<std::byte> got;
  std::function<void()> receives;
  bool skips_zeros = false;
  std::atomic<bool> stop{false};
  DeviceApi api;
  std::atomic<uint64_t> sent_bytes{0};
  TargetStream stream{sent_bytes};
  MemoryRounds rounds{api};
};

bool same(Memory& memory, const std::vector<std::byte>& copy) {
  return std::memcmp(&memory[0], copy.data(), memory.size) == 0;
}

}  // namespace

TEST_CASE("blocks have the same hash exactly if they are the same") {
  const HashKeys keys, others;
  Memory memory(3 * kHashedBlock);
  std::memcpy(&memory[kHashedBlock], &memory[0], kHashedBlock);
  memory[2 * kHashedBlock] = std::byte{1};
  BlockHash hashes[3], other;
  hash_blocks(&memory[0], 3, keys, hashes);
  CHECK(hashes[0] == hashes[1]);
  CHECK(hashes[0] != hashes[2]);
  hash_blocks(&memory[0], 1, others, &other);
  CHECK(hashes[0] != other);
  for (uint64_t bit = 0; bit < 8 * kHashedBlock; bit += 6553) {
    memory[bit / 8] ^= std::byte(1 << bit % 8);
    hash_blocks(&memory[0], 1, keys, &other);
    CHECK(hashes[0] != other);
    memory[bit / 8] ^= std::byte(1 << bit % 8);
  }
  // Changes whose sum is zero, as in stencils and permutations.
  std::swap(memory[4096], memory[4608]);
  hash_blocks(&memory[0], 1, keys, &other);
  CHECK(hashes[0] != other);
}

// NH as the header defines it.
BlockHash reference(const std::byte* data, const uint32_t* key) {
  BlockHash hash{};
  for (size_t i = 0; i < kHashedBlock / sizeof(uint32_t); i += 2) {
    uint32_t word[2];
    std::memcpy(word, data + i * sizeof(uint32_t), sizeof word);
    hash[0] += uint64_t{word[0] + key[i]} * (word[1] + key[i + 1]);
    hash[1] += uint64_t{word[0] + key[i + 2]} * (word[1] + key[i + 3]);
  }
  return hash;
}

TEST_CASE("hashes are the same with vectors and threads") {
  const HashKeys keys;
  constexpr size_t kMany = 1000;
  Memory memory(kMany * kHashedBlock + 64);
  for (uint64_t i = 0; i < memory.size; ++i) memory[i] = std::byte(i * 2654435761u >> 13);
  for (const size_t offset : {size_t{0}, size_t{4}}) {
    std::vector<BlockHash> one(kMany), many(kMany);
    hash_blocks(&memory[offset], kMany, keys, one.data());
    hash_blocks_at_once(&memory[offset], kMany, keys, many.data());
    CHECK(one == many);
    for (const size_t block : {size_t{0}, size_t{127}, size_t{128}, kMany - 1})
      CHECK(one[block] == reference(&memory[offset + block * kHashedBlock], keys.words()));
  }
}

TEST_CASE("the last round sends what has changed since it was sent, and no more") {
  Rounds source;
  Memory memory(kBytes + 4096);
  std::vector<std::byte> copy(memory.size);
  source.rounds.add(memory.range());
  source.run();
  CHECK(source.apply_to(copy, memory.address()) == kBytes);  // one round, and the tail has no hash
  memory[3 * kHashedBlock] ^= std::byte{1};
  memory[17 * kHashedBlock - 1] ^= std::byte{1};
  CHECK(source.finish() == 2 * kHashedBlock + 4096);
  CHECK(source.apply_to(copy, memory.address()) == 2 * kHashedBlock + 4096);
  CHECK(same(memory, copy));
}

TEST_CASE("without a round, the last one sends everything") {
  Rounds source;
  Memory memory;
  std::vector<std::byte> copy(memory.size);
  source.rounds.add(memory.range());
  CHECK(source.finish() == kBytes);
  source.apply_to(copy, memory.address());
  CHECK(same(memory, copy));
}

TEST_CASE("blocks of zeros are not sent to a file, which gets everything at once") {
  Rounds source;
  source.skips_zeros = true;
  Memory memory(40 * kHashedBlock + 4096), zeros(3 * kHashedBlock);
  for (const auto& [first, count] : {std::pair{0, 1}, {5, 20}, {39, 1}})
    std::fill_n(&memory[first * kHashedBlock], count * kHashedBlock, std::byte{0});
  std::fill_n(&zeros[0], zeros.size, std::byte{0});
  std::vector<std::byte> copy(memory.size);
  source.rounds.add(memory.range());
  source.rounds.add(zeros.range());
  CHECK(source.finish() == memory.size - 22 * kHashedBlock);
  CHECK(source.apply_to(copy, memory.address()) == memory.size - 22 * kHashedBlock);
  CHECK(same(memory, copy));
}

TEST_CASE("memory that is forgotten is not sent, and sent again if it comes back") {
  Rounds source;
  Memory kept, gone;
  source.rounds.add(kept.range());
  source.rounds.add(gone.range());
  source.run();
  source.got.clear();
  source.rounds.forget(gone.address() + 4096, 4096);  // some of it: all of it
  CHECK_FALSE(source.rounds.contains(gone.address(), gone.size));
  CHECK(source.rounds.contains(kept.address(), kept.size));
  CHECK(source.finish() == 0);
  source.rounds.add(gone.range());
  CHECK(source.finish() == kBytes);
}

TEST_CASE("rounds go on until little changes") {
  Rounds source;
  Memory memory(256 * kHashedBlock);
  source.rounds.add(memory.range());
  std::atomic<bool> over{false};
  // A program that never stops writing all of its memory, while the rounds read it.
  std::thread writer([&]() __attribute__((no_sanitize("thread"))) {
    for (uint8_t value = 0; !over; ++value) {
      for (uint64_t i = 0; i < memory.size; i += kHashedBlock) memory[i] = std::byte{value};
    }
  });
  source.run();  // ends although each round would send as much as the one before
  over = true;
  writer.join();
  std::vector<std::byte> copy(memory.size);
  source.finish();
  source.apply_to(copy, memory.address());
  CHECK(same(memory, copy));
}

// Stops adding at some time, so that a sender that waits for the end of it fails the test in finite time.
constexpr int kMostAdded = 1'000'000;

TEST_CASE("commands that are added while others are sent wait for the next time") {
  Rounds source;
  int received = 0;
  source.receives = [&] {
    if (++received < kMostAdded) source.add_command();
  };
  for (int i = 0; i < 3; ++i) source.add_command();
  REQUIRE(source.stream.send_added());
  CHECK(received == 3);
  REQUIRE(source.stream.send_added(2));
  CHECK(received == 5);
}

TEST_CASE("rounds end although the program makes objects faster than the target") {
  Rounds source;
  Memory memory(1024 * kHashedBlock);
  source.rounds.add(memory.range());
  int received = 0;
  source.receives = [&] {
    source.got.clear();
    if (++received >= kMostAdded) return;
    for (int i = 0; i < 2; ++i) source.add_command();
  };
  source.add_command();
  source.run();
  CHECK(received < 100'000);
}

TEST_CASE("no memory is read after it was forgotten") {
  Rounds source;
  std::atomic<bool> over{false}, failed{false};
  std::thread sender([&] {
    while (!over) {
      if (!source.rounds.run(source.stream, source.stop)) failed = true;
      source.got.clear();
    }
  });
  for (int i = 0; i < 300; ++i) {
    Memory first(8 * kHashedBlock), second(8 * kHashedBlock);
    source.rounds.add(first.range());
    source.rounds.add(second.range());
    std::this_thread::yield();
    source.rounds.forget(first.address(), first.size);
    source.rounds.await_read(first.address(), first.size);
    first.unmap();  // reading it would end this process
    source.rounds.forget(second.address(), second.size);
    while (source.rounds.is_being_read(second.address(), second.size)) std::this_thread::yield();
  }
  over = true;
  sender.join();
  CHECK_FALSE(failed);
}

}  // namespace gpupool::worker
