// A byte stream over a queue pair: messages of up to kBufferBytes, each sent when there is a credit for it
// (credits.h). Used by RdmaConnection, which adds the peer to error messages.
//
// Small messages are sent inline, straight from the caller's memory; others go through a ring of registered
// buffers. Only some sends ask for a completion, which stands for all sends before it.
//
// Any thread. One lock guards everything and is never held while waiting. A side has one thread that sends
// and one that receives. Whichever of them polls the completions handles the other's, too, and wakes it if it
// sleeps in wait().
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

  uint32_t receives() const { return receives_; }  // data messages that the peer may have in flight
  // Has to be connected before anything is sent.
  QueuePair& pair() { return *pair_; }
  // To be called before the queue pair is connected, with the peer's receives().
  Result<void> begin(uint32_t peer_receives);
  // Sends an empty message and waits until the peer's device acknowledges it, which shows that packets pass
  // in both directions.
  Result<void> probe(Deadline deadline);

  Result<size_t> send_some(std::span<const iovec> buffers);
  Result<size_t> receive_some(std::span<std::byte> buffer);
  // Returns what is possible now. A broken queue pair counts as ready: the next call reports the error.
  Connection::Ready look(bool for_receive, bool for_send);

  // To be called before a thread sleeps. If it returns Ready::none the thread may sleep: one of the
  // descriptors becomes readable when what the thread waits for may have happened. It then calls
  // stop_waiting().
  Connection::Ready prepare_to_wait(bool for_receive, bool for_send);
  void stop_waiting(bool for_receive, bool for_send);
  int events_descriptor() const { return pair_->events_descriptor(); }
  int wake_descriptor(bool receiver) const { return receiver ? receiver_wake_ : sender_wake_; }

  // Sends the last message and waits until the peer's device has acknowledged everything, or until the
  // deadline.
  void end(Deadline deadline);
  // Ends the stream without a word to the peer. Messages that have arrived and were not taken are dropped;
  // their buffers go back to the session's other connections.
  void abandon();

 private:
  enum class Kind : uint32_t { data, credits, probe, end };
  Stream(std::shared_ptr<Domain> domain, uint32_t depth);
  bool has_room() const { return posted_ - completed_ < sends_; }
  bool can_send() const {
    return !failure_ && !ending_ && has_room() && credits_ && credits_->can_send_message();
  }
  bool can_receive() const { return !arrived_.empty() || failure_ || ended_; }
  Connection::Ready look_locked(bool for_receive, bool for_send);
  void progress();  // handles completions, returns credits, wakes sleeping threads
  void handle(const ibv_wc& completion);
  void handle_receive(const ibv_wc& completion);
  void post_control(Kind kind);
  uint32_t post_batch(std::span<const iovec>& buffers, size_t& offset, size_t& total);
  void repost(ReceiveBuffer& buffer);
  void drop_arrived();
  void fail(ErrorCode code, std::string message);
  Result<void> await(std::unique_lock<std::mutex>& lock, Deadline deadline,
                     const std::function<bool()>& done);

  const std::shared_ptr<Domain> domain_;
  const uint32_t receives_;
  const uint32_t sends_;  // most messages without acknowledgement
  const int receiver_wake_;
  const int sender_wake_;

  std::mutex mutex_;  // guards all below
  bool joined_ = false;
  std::unique_ptr<BufferBlock> send_buffers_;
  std::unique_ptr<QueuePair> pair_;  // declared after send_buffers_, because it must be destroyed before them
  std::optional<Credits> credits_;
  uint64_t posted_ = 0, completed_ = 0;  // numbers of sends
  struct Arrived {
    ReceiveBuffer* buffer;
    uint32_t size;
    uint32_t offset;
  };
  std::deque<Arrived> arrived_;
  bool ended_ = false;   // by the peer
  bool ending_ = false;  // by this side
  bool is_abandoned_ = false;
  std::optional<Error> failure_;
  bool receiver_sleeps_ = false, sender_sleeps_ = false;
};

}  // namespace gpupool::transport::rdma
