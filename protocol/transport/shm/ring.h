// Carries the bytes of one direction through memory that two processes map. One thread writes, one thread
// reads, as a rule in different processes. Used by ShmConnection.
//
// Neither side trusts the other. Each keeps its own index in private memory and publishes a copy; the other's
// index is checked at every use, and bytes are copied out before they are used. So a peer that writes garbage
// damages only its own session: the functions return nullopt.
#pragma once
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace gpupool::transport::shm {

// Lies in the shared memory. Writer's and reader's fields are in separate cache lines.
struct RingControl {
  alignas(64) std::atomic<uint64_t> written;  // bytes since the start
  std::atomic<uint32_t> writer_sleeps;        // the writer wants a doorbell when there is room
  std::atomic<uint32_t> writer_closed;
  alignas(64) std::atomic<uint64_t> read;  // bytes since the start
  std::atomic<uint32_t> reader_sleeps;     // the reader wants a doorbell when there are bytes
};
static_assert(sizeof(RingControl) == 128 && std::atomic<uint64_t>::is_always_lock_free);

// The index is published after this many bytes, so that the other side works on the front of a long transfer
// meanwhile.
constexpr size_t kStepBytes = 64 * 1024;

class RingWriter {
 public:
  RingWriter(RingControl& control, std::byte* data, size_t capacity)
      : control_(control), data_(data), capacity_(capacity) {}

  // Free bytes; nullopt: the reader's index is invalid.
  std::optional<size_t> room() {
    const uint64_t used = written_ - control_.read.load(std::memory_order_seq_cst);
    if (used > capacity_) return std::nullopt;
    return capacity_ - used;
  }
  // Writes as much from the front of the list as fits, and returns the bytes written; nullopt: the reader's
  // index is invalid. Calls `wake` if the reader asked for a doorbell.
  template <class Wake>
  std::optional<size_t> write(std::span<const iovec> buffers, Wake&& wake);
  RingControl& control() { return control_; }

 private:
  void put(const std::byte* from, size_t bytes);

  RingControl& control_;
  std::byte* const data_;
  const size_t capacity_;  // a power of two
  uint64_t written_ = 0;   // never read back from the shared memory
};

class RingReader {
 public:
  RingReader(RingControl& control, const std::byte* data, size_t capacity)
      : control_(control), data_(data), capacity_(capacity) {}

  // Bytes to read; nullopt: the writer's index is invalid.
  std::optional<size_t> available() {
    const uint64_t there =
        control_.written.load(std::memory_order_seq_cst) - read_.load(std::memory_order_relaxed);
    if (there > capacity_) return std::nullopt;
    return there;
  }
  // Reads the bytes that are there, at most buffer.size(), and returns their number; nullopt: the writer's
  // index is invalid. Calls `wake` if the writer asked for a doorbell and half of the ring is free.
  template <class Wake>
  std::optional<size_t> read(std::span<std::byte> buffer, Wake&& wake);
  RingControl& control() { return control_; }

 private:
  void get(std::byte* to, size_t bytes) const;

  RingControl& control_;
  const std::byte* const data_;
  const size_t capacity_;
  // Written by the thread that reads. available() may be called by another thread that still waits for a
  // broken connection; its answer is not used.
  std::atomic<uint64_t> read_{0};
};

template <class Wake>
std::optional<size_t> RingWriter::write(std::span<const iovec> buffers, Wake&& wake) {
  auto left = room();
  if (!left) return std::nullopt;
  size_t total = 0;
  size_t step = 0;  // bytes since the last publication
  const auto publish = [&] {
    control_.written.store(written_, std::memory_order_seq_cst);
    step = 0;
    if (control_.reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
        control_.reader_sleeps.exchange(0) != 0)
      wake();
  };
  for (const iovec& buffer : buffers) {
    for (size_t at = 0; at < buffer.iov_len && *left != 0;) {
      const size_t bytes = std::min({buffer.iov_len - at, *left, kStepBytes - step});
      put(static_cast<const std::byte*>(buffer.iov_base) + at, bytes);
      at += bytes;
      total += bytes;
      step += bytes;
      *left -= bytes;
      if (step == kStepBytes) publish();
      if (*left == 0 && !(left = room())) return std::nullopt;
    }
    if (*left == 0) break;
  }
  if (step != 0) publish();
  return total;
}

template <class Wake>
std::optional<size_t> RingReader::read(std::span<std::byte> buffer, Wake&& wake) {
  size_t total = 0;
  while (total < buffer.size()) {
    const auto there = available();
    if (!there) return std::nullopt;
    if (*there == 0) break;
    const size_t bytes = std::min({buffer.size() - total, *there, kStepBytes});
    get(buffer.data() + total, bytes);
    total += bytes;
    const uint64_t read = read_.load(std::memory_order_relaxed) + bytes;
    read_.store(read, std::memory_order_relaxed);
    control_.read.store(read, std::memory_order_seq_cst);
    // A doorbell for every few bytes of room would cost more than copying them.
    if (control_.writer_sleeps.load(std::memory_order_seq_cst) != 0 && *there - bytes <= capacity_ / 2 &&
        control_.writer_sleeps.exchange(0) != 0) {
      wake();
    }
  }
  return total;
}

}  // namespace gpupool::transport::shm
