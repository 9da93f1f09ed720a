#include "rdma/stream.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "protocol/transport/deadline.h"

namespace gpupool::transport::rdma {
namespace {

constexpr uint32_t kDepth = 32;  // data messages in flight
constexpr uint32_t kBulkDepth = 64;
constexpr uint32_t kSignalEvery = 8;  // data messages per completion
constexpr uint32_t kBatch = 16;       // most sends per doorbell
constexpr uint32_t kSendParts = 8;
constexpr uint32_t kInlineBytes = 256;
constexpr unsigned kKindShift = 28;  // of the kind in a message's immediate word, above Credits' count

// Sends and receives share a completion queue: the wr_id of a send is odd, that of a receive is the even
// address of its buffer.
constexpr uint64_t send_id(uint64_t number) {
  return number << 1 | 1;
}

// Skips to the next byte.
void skip_empty(std::span<const iovec>& buffers, size_t& offset) {
  for (; !buffers.empty() && offset == buffers.front().iov_len; offset = 0) buffers = buffers.subspan(1);
}

void ring(int wake) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake, &one, sizeof one);
}

void silence(int wake) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake, &count, sizeof count);
}

}  // namespace

Stream::Stream(std::shared_ptr<Domain> domain, uint32_t depth)
    : domain_(std::move(domain)),
      receives_(depth),
      sends_(depth + kReserved),
      receiver_wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      sender_wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Result<std::unique_ptr<Stream>> Stream::make(std::shared_ptr<Domain> domain, bool bulk) {
  std::unique_ptr<Stream> made(new Stream(std::move(domain), bulk ? kBulkDepth : kDepth));
  if (made->receiver_wake_ < 0 || made->sender_wake_ < 0)
    return Error{ErrorCode::unavailable, "cannot create an eventfd"};
  auto buffers = made->domain_->make_buffers(made->sends_);
  if (!buffers) return buffers.error();
  made->send_buffers_ = std::move(*buffers);
  // A misbehaving peer may use up all shared receive buffers, so the completion queue has room for all of
  // them.
  auto pair = QueuePair::make(made->domain_, {.sends = made->sends_,
                                              .receives = kMostSharedReceives,
                                              .send_parts = kSendParts,
                                              .inline_bytes = kInlineBytes});
  if (!pair) return pair.error();
  made->pair_ = std::move(*pair);
  if (auto joined = made->domain_->add_receive_buffers(made->receives_ + kReserved); !joined)
    return joined.error();
  made->joined_ = true;
  return made;
}

Stream::~Stream() {
  if (pair_) {
    drop_arrived();
    pair_.reset();
  }
  if (joined_) domain_->release_receive_buffers(receives_ + kReserved);
  for (const int wake : {receiver_wake_, sender_wake_}) {
    if (wake >= 0) ::close(wake);
  }
}

// Received messages that nobody will read: their buffers go back to the session's other connections.
void Stream::drop_arrived() {
  pair_->fail();
  ibv_wc done[16];
  for (int count = 1; count > 0;) {
    count = ibv_poll_cq(pair_->completions(), std::size(done), done);
    for (int i = 0; i < count; ++i) {
      if ((done[i].wr_id & 1) == 0) repost(*reinterpret_cast<ReceiveBuffer*>(done[i].wr_id));
    }
  }
  for (const Arrived& message : arrived_) repost(*message.buffer);
  arrived_.clear();
}

void Stream::abandon() {
  const std::lock_guard lock(mutex_);
  fail(ErrorCode::lost, "the connection was replaced");
  is_abandoned_ = true;
  drop_arrived();
  if (std::exchange(joined_, false)) domain_->release_receive_buffers(receives_ + kReserved);
  progress();  // wakes sleeping threads
}

Result<void> Stream::begin(uint32_t peer_receives) {
  const std::lock_guard lock(mutex_);
  if (peer_receives == 0 || peer_receives > kMostSharedReceives) {
    return Error{ErrorCode::malformed, "the peer sent an invalid queue length"};
  }
  credits_.emplace(receives_, peer_receives);
  return {};
}

Result<void> Stream::probe(Deadline deadline) {
  std::unique_lock lock(mutex_);
  post_control(Kind::probe);
  return await(lock, deadline, [this] { return completed_ == posted_; });
}

// Waits until `done`, or until the peer has ended the stream and so needs nothing more.
Result<void> Stream::await(std::unique_lock<std::mutex>& lock, Deadline deadline,
                           const std::function<bool()>& done) {
  while (true) {
    progress();
    if (failure_) return *failure_;
    if (done() || ended_) return {};
    pair_->arm();
    progress();
    if (failure_ || done() || ended_) continue;
    if (passed(deadline)) return Error{ErrorCode::lost, "no acknowledgement from the peer"};
    lock.unlock();
    pollfd polled{pair_->events_descriptor(), POLLIN, 0};
    ::poll(&polled, 1, poll_limit(deadline));
    lock.lock();
    pair_->take_events();
  }
}

void Stream::end(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (ending_ || !credits_) return;
  ending_ = true;
  if (!await(lock, deadline, [this] { return has_room(); }) || ended_) return;
  post_control(Kind::end);
  (void)await(lock, deadline, [this] { return completed_ == posted_; });
}

// Control messages always ask for a completion.
void Stream::post_control(Kind kind) {
  ibv_send_wr request{};
  request.wr_id = send_id(posted_);
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.imm_data = htonl(static_cast<uint32_t>(kind) << kKindShift | credits_->next_returned_count());
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pair_->get(), &request, &bad) != 0)
    return fail(ErrorCode::unavailable, "ibv_post_send failed");
  ++posted_;
}

Result<size_t> Stream::send_some(std::span<const iovec> buffers) {
  const std::lock_guard lock(mutex_);
  size_t total = 0, offset = 0;
  while (true) {
    skip_empty(buffers, offset);
    if (buffers.empty()) break;
    if (!can_send()) progress();
    if (!can_send()) break;
    post_batch(buffers, offset, total);
  }
  if (total != 0) return total;
  if (failure_) return *failure_;
  if (ending_) return Error{ErrorCode::closed, "the connection was closed on this side"};
  return size_t{0};
}

// Posts as many messages as may be sent, at most kBatch, with one doorbell. Returns how many.
uint32_t Stream::post_batch(std::span<const iovec>& buffers, size_t& offset, size_t& total) {
  std::array<ibv_send_wr, kBatch> requests;
  std::array<std::array<ibv_sge, kSendParts>, kBatch> parts;
  const uint32_t most_parts = std::min(kSendParts, pair_->send_parts());
  uint32_t count = 0;
  for (; count < kBatch && can_send(); ++count) {
    skip_empty(buffers, offset);
    if (buffers.empty()) break;
    ibv_send_wr& request = requests[count] = {};
    std::byte* const slot = send_buffers_->at(posted_ % sends_);
    size_t bytes = 0, pieces = 0;
    // Try to send the rest inline: a gather list over the caller's memory.
    std::span<const iovec> rest = buffers;
    size_t at = offset;
    for (; !rest.empty() && pieces < most_parts && bytes <= pair_->inline_bytes();
         rest = rest.subspan(1), at = 0) {
      const size_t size = rest.front().iov_len - at;
      if (size == 0) continue;
      if (bytes + size > kBufferBytes) break;
      parts[count][pieces++] = {reinterpret_cast<uintptr_t>(rest.front().iov_base) + at,
                                static_cast<uint32_t>(size), 0};
      bytes += size;
    }
    const bool inlined = bytes != 0 && bytes <= pair_->inline_bytes() && rest.empty();
    if (inlined) {
      request.send_flags = IBV_SEND_INLINE;
      buffers = rest;
      offset = 0;
    } else {
      bytes = 0;
      while (bytes < kBufferBytes && !buffers.empty()) {
        const size_t size = std::min(kBufferBytes - bytes, buffers.front().iov_len - offset);
        if (size != 0)
          std::memcpy(slot + bytes, static_cast<const std::byte*>(buffers.front().iov_base) + offset, size);
        bytes += size;
        offset += size;
        if (offset == buffers.front().iov_len) {
          buffers = buffers.subspan(1);
          offset = 0;
        }
      }
      parts[count][0] = {reinterpret_cast<uintptr_t>(slot), static_cast<uint32_t>(bytes),
                         send_buffers_->key()};
      pieces = 1;
    }
    total += bytes;
    request.wr_id = send_id(posted_);
    request.sg_list = parts[count].data();
    request.num_sge = static_cast<int>(pieces);
    request.opcode = IBV_WR_SEND_WITH_IMM;
    if (posted_ % kSignalEvery == kSignalEvery - 1) request.send_flags |= IBV_SEND_SIGNALED;
    request.imm_data =
        htonl(static_cast<uint32_t>(Kind::data) << kKindShift | credits_->next_returned_count());
    if (count != 0) requests[count - 1].next = &request;
    credits_->count_sent();
    ++posted_;
  }
  ibv_send_wr* bad = nullptr;
  if (count != 0 && ibv_post_send(pair_->get(), requests.data(), &bad) != 0) {
    fail(ErrorCode::unavailable, "ibv_post_send failed");
  }
  return count;
}

Result<size_t> Stream::receive_some(std::span<std::byte> buffer) {
  const std::lock_guard lock(mutex_);
  if (buffer.empty()) return size_t{0};
  if (ending_) return Error{ErrorCode::closed, "the connection was closed on this side"};
  if (arrived_.empty()) progress();
  size_t total = 0;
  while (!arrived_.empty() && total < buffer.size()) {
    Arrived& message = arrived_.front();
    const uint32_t size =
        static_cast<uint32_t>(std::min<size_t>(message.size - message.offset, buffer.size() - total));
    std::memcpy(buffer.data() + total, message.buffer->data + message.offset, size);
    total += size;
    message.offset += size;
    if (message.offset < message.size) break;
    repost(*message.buffer);
    credits_->count_consumed();
    arrived_.pop_front();
  }
  if (total != 0) {
    if (credits_->return_is_due()) progress();
    return total;
  }
  if (ended_) return Error{ErrorCode::closed, "the peer closed the connection"};
  if (failure_) return *failure_;
  return size_t{0};
}

Connection::Ready Stream::look(bool for_receive, bool for_send) {
  const std::lock_guard lock(mutex_);
  progress();
  return look_locked(for_receive, for_send);
}

Connection::Ready Stream::look_locked(bool for_receive, bool for_send) {
  using Ready = Connection::Ready;
  const bool receive = for_receive && (can_receive() || ending_);
  const bool send = for_send && (can_send() || failure_ || ending_);
  return receive && send ? Ready::both : receive ? Ready::receive : send ? Ready::send : Ready::none;
}

Connection::Ready Stream::prepare_to_wait(bool for_receive, bool for_send) {
  const std::lock_guard lock(mutex_);
  progress();
  const auto ready = look_locked(for_receive, for_send);
  if (ready != Connection::Ready::none) return ready;
  // Completions before arm() raise no event: look once more.
  pair_->arm();
  progress();
  const auto again = look_locked(for_receive, for_send);
  if (again != Connection::Ready::none) return again;
  receiver_sleeps_ |= for_receive;
  sender_sleeps_ |= for_send;
  return Connection::Ready::none;
}

void Stream::stop_waiting(bool for_receive, bool for_send) {
  const std::lock_guard lock(mutex_);
  if (for_receive) {
    receiver_sleeps_ = false;
    silence(receiver_wake_);
  }
  if (for_send) {
    sender_sleeps_ = false;
    silence(sender_wake_);
  }
  pair_->take_events();
  progress();
  // The other thread may be asleep, and the event taken here would have woken it.
  if (receiver_sleeps_ || sender_sleeps_) {
    pair_->arm();
    progress();
  }
}

void Stream::progress() {
  ibv_wc done[16];
  for (int count = std::size(done); count == std::size(done);) {
    count = ibv_poll_cq(pair_->completions(), std::size(done), done);
    if (count < 0) fail(ErrorCode::unavailable, "ibv_poll_cq failed");
    for (int i = 0; i < count; ++i) handle(done[i]);
  }
  if (!failure_ && credits_ && credits_->return_is_due() && has_room()) post_control(Kind::credits);
  if (receiver_sleeps_ && (can_receive() || ending_)) ring(receiver_wake_);
  if (sender_sleeps_ && (can_send() || failure_ || ending_)) ring(sender_wake_);
}

void Stream::handle(const ibv_wc& completion) {
  const bool receive = (completion.wr_id & 1) == 0;
  if (completion.status != IBV_WC_SUCCESS) {
    if (receive) repost(*reinterpret_cast<ReceiveBuffer*>(completion.wr_id));
    const bool unreachable = completion.status == IBV_WC_RETRY_EXC_ERR;
    return fail(ErrorCode::lost, unreachable ? "no acknowledgement from the peer (it is down, or the link is)"
                                             : std::string("the queue pair failed: ") +
                                                   domain_->verbs().wc_status_str(completion.status));
  }
  if (receive) return handle_receive(completion);
  completed_ = (completion.wr_id >> 1) + 1;
}

void Stream::handle_receive(const ibv_wc& completion) {
  ReceiveBuffer& buffer = *reinterpret_cast<ReceiveBuffer*>(completion.wr_id);
  const bool counted = (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
  const uint32_t word = counted ? ntohl(completion.imm_data) : 0;
  const Kind kind{word >> kKindShift};
  if (is_abandoned_) return repost(buffer);
  // A probe may arrive before this side has finished connect(): it is the peer's first message.
  bool good = counted && kind <= Kind::end && credits_.has_value();
  if (good && kind == Kind::data && completion.byte_len != 0) {
    good = credits_->count_received();
    if (good)
      arrived_.push_back({&buffer, completion.byte_len, 0});
    else
      repost(buffer);
  } else {
    repost(buffer);
    good = good && kind != Kind::data;
    ended_ |= kind == Kind::end;
  }
  if (!good || !credits_->take_returned_count(word & kCountMask))
    fail(ErrorCode::malformed, "the peer violated the rdma protocol");
}

void Stream::repost(ReceiveBuffer& buffer) {
  if (auto posted = domain_->post(buffer); !posted) fail(posted.error().code, posted.error().message);
}

void Stream::fail(ErrorCode code, std::string message) {
  if (!failure_) failure_ = Error{code, std::move(message)};
}

}  // namespace gpupool::transport::rdma
