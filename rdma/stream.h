// A stream of bytes over a queue pair: messages of up to kBufferBytes, each sent when there is a credit for it (credits.h).
//
// Small messages go inline, straight from the caller's memory; others through a ring of registered buffers. Of the sends only
// some ask for a completion; one completion tells of all before it.
//
// Any thread; one lock over everything, never held while waiting. A side has one thread that sends and one that receives, and
// whichever of them looks at the completions does the other's part, too: it wakes it, when it sleeps in wait().
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "rdma/credits.h"
#include "rdma/queue_pair.h"

namespace gpupool::transport::rdma {

class Stream {
 public:
  // `bulk`: deeper queues, for bandwidth.
  static Result<std::unique_ptr<Stream>> make(std::shared_ptr<Domain> domain, bool bulk);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  uint32_t receives() const { return receives_; }  // data messages that the peer may have on their way
  // To be connected before anything is sent.
  QueuePair& pair() { return *pair_; }
  // Before it is connected; `peer_receives` as the peer's receives().
  Result<void> begin(uint32_t peer_receives);
  // Sends an empty message and waits until the peer's device has it: the way there and back works.
  Result<void> probe(Deadline deadline);

  Result<size_t> send_some(std::span<const iovec> buffers);
  Result<size_t> receive_some(std::span<std::byte> buffer);
  // What is possible now; errors of the queue pair count as possible, since the next call tells them.
  Connection::Ready look(bool for_receive, bool for_send);

  // A thread is about to sleep: from now on one of the descriptors becomes readable when what it waits for may have come.
  // None: it may sleep. Afterwards it calls stop_waiting().
  Connection::Ready prepare_to_wait(bool for_receive, bool for_send);
  void stop_waiting(bool for_receive, bool for_send);
  int events_descriptor() const { return pair_->events_descriptor(); }
  int wake_descriptor(bool receiver) const { return receiver ? receiver_wake_ : sender_wake_; }

  // The last message; waits until the peer's device has all of it, or the deadline.
  void end(Deadline deadline);

 private:
  enum class Kind : uint32_t { data, credits, probe, end };
  Stream(std::shared_ptr<Domain> domain, uint32_t depth);
  bool has_room() const { return posted_ - completed_ < sends_; }
  bool can_send() const { return !failure_ && !ending_ && has_room() && credits_ && credits_->may_send(); }
  bool can_receive() const { return !arrived_.empty() || failure_ || ended_; }
  Connection::Ready look_locked(bool for_receive, bool for_send);
  void progress();  // handles completions, returns credits, wakes
  void handle(const ibv_wc& completion);
  void handle_receive(const ibv_wc& completion);
  void post_control(Kind kind);
  uint32_t post_batch(std::span<const iovec>& buffers, size_t& offset, size_t& total);
  void repost(ReceiveBuffer& buffer);
  void fail(ErrorCode code, std::string message);
  Result<void> await(std::unique_lock<std::mutex>& lock, Deadline deadline, const std::function<bool()>& done);

  const std::shared_ptr<Domain> domain_;
  const uint32_t receives_;
  const uint32_t sends_;  // as many messages may wait to be acknowledged
  const int receiver_wake_;
  const int sender_wake_;

  std::mutex mutex_;  // what follows
  bool joined_ = false;
  std::unique_ptr<BufferBlock> send_buffers_;
  std::unique_ptr<QueuePair> pair_;  // before the buffers goes what uses them
  std::optional<Credits> credits_;
  uint64_t posted_ = 0, completed_ = 0;  // sends
  struct Arrived {
    ReceiveBuffer* buffer;
    uint32_t size;
    uint32_t offset;
  };
  std::deque<Arrived> arrived_;
  bool ended_ = false;   // by the peer
  bool ending_ = false;  // by this side
  std::optional<Error> failure_;
  bool receiver_sleeps_ = false, sender_sleeps_ = false;
};

}  // namespace gpupool::transport::rdma
