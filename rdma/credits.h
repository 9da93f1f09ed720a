// Flow control of a stream: who may send, and when the other side hears that it may go on.
//
// Each side has `limit` + kReserved receive buffers posted for the connection. A data message takes one of `limit` credits,
// and its buffer is posted again before the credit goes back. Credits go back with every message (a running count beside the
// data) and, when half of `limit` is owed, with a message of its own, which needs no credit.
//
// Invariant: the peer never has more messages on their way or unposted than there are buffers.
//   - Data: at most `limit`, by credits.
//   - Messages of their own that return credits: at most 2. Each tells of at least limit / 2 credits that nobody told of
//     before, and the peer can have at most `limit` credits out that it does not know to be back. Such a message's buffer is
//     posted again before what it tells is used.
//   - One probe, as the first message, and one end, as the last.
// So kReserved is 4, no message ever finds the receiver not ready, and none waits for another's credit: what returns credits
// is never held up by the lack of them.
#pragma once
#include <cstdint>

namespace gpupool::transport::rdma {

constexpr uint32_t kReserved = 4;
constexpr uint32_t kCountMask = (1u << 28) - 1;  // counts run modulo this: they share 32 bits with the message's kind

// Not thread-safe.
class Credits {
 public:
  // `mine`: data messages that the peer may send; `theirs`: that this side may.
  Credits(uint32_t mine, uint32_t theirs) : mine_(mine), theirs_(theirs) {}

  bool may_send() const { return sent_ - returned_ < theirs_; }
  void has_sent() { ++sent_; }
  // The peer says how many it has had in all. False: that cannot be.
  bool hear(uint32_t count) {
    const uint32_t more = (count - returned_) & kCountMask;
    if (more > sent_ - returned_) return false;
    returned_ += more;
    return true;
  }

  // A data message came. False: the peer had no credit for it.
  bool has_received() {
    if (received_ - consumed_ >= mine_) return false;
    ++received_;
    return true;
  }
  void has_consumed() { ++consumed_; }  // its buffer is posted again
  // Time for a message that returns credits?
  bool owes() const { return consumed_ - told_ >= (mine_ + 1) / 2; }
  // The count to send now.
  uint32_t tell() {
    told_ = consumed_;
    return told_ & kCountMask;
  }

 private:
  const uint32_t mine_;
  const uint32_t theirs_;
  uint32_t sent_ = 0, returned_ = 0;
  uint32_t received_ = 0, consumed_ = 0, told_ = 0;
};

}  // namespace gpupool::transport::rdma
