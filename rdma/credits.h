// Flow control of a stream by credits: when a side may send, and when it tells the peer that it may go on.
// Used by Stream under its lock.
//
// Each side posts `limit` + kReserved receive buffers for a connection. A data message takes one of `limit`
// credits, and its buffer is posted again before the credit is returned. Every message returns credits (by a
// running count beside the data); when half of `limit` is owed, a message of its own returns them, which
// needs no credit.
//
// Invariant: messages of the peer that are in flight or whose buffers are not posted again never outnumber
// the buffers.
//   - Data messages: at most `limit`, by credits.
//   - Credit messages: at most 2. Each returns at least limit / 2 credits that were not returned before, and
//     at most `limit` credits can be outstanding. Its buffer is posted again before those credits are used.
//   - One probe, as the first message, and one end, as the last.
// So kReserved is 4. No message finds the receiver without a buffer, and credit messages never wait for
// credits, so the two sides cannot deadlock.
#pragma once
#include <cstdint>

namespace gpupool::transport::rdma {

constexpr uint32_t kReserved = 4;
// Counts are modulo this: they share 32 bits with the message's kind.
constexpr uint32_t kCountMask = (1u << 28) - 1;

// Not thread-safe.
class Credits {
 public:
  // `mine`: data messages that the peer may have in flight; `theirs`: those that this side may.
  Credits(uint32_t mine, uint32_t theirs) : mine_(mine), theirs_(theirs) {}

  bool can_send_message() const { return sent_ - returned_ < theirs_; }
  void count_sent() { ++sent_; }
  // Takes the peer's running count of data messages that it has consumed. False: the count is impossible.
  bool take_returned_count(uint32_t count) {
    const uint32_t more = (count - returned_) & kCountMask;
    if (more > sent_ - returned_) return false;
    returned_ += more;
    return true;
  }

  // Counts a data message that has arrived. False: the peer had no credit for it.
  bool count_received() {
    if (received_ - consumed_ >= mine_) return false;
    ++received_;
    return true;
  }
  void count_consumed() { ++consumed_; }  // the message's buffer has been posted again
  // True if a message that returns credits is due.
  bool return_is_due() const { return consumed_ - returned_to_peer_ >= (mine_ + 1) / 2; }
  // Returns the running count for the message that is about to be sent.
  uint32_t next_returned_count() {
    returned_to_peer_ = consumed_;
    return returned_to_peer_ & kCountMask;
  }

 private:
  const uint32_t mine_;
  const uint32_t theirs_;
  uint32_t sent_ = 0, returned_ = 0;
  uint32_t received_ = 0, consumed_ = 0, returned_to_peer_ = 0;
};

}  // namespace gpupool::transport::rdma
