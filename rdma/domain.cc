#include "rdma/domain.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace gpupool::transport::rdma {
BufferBlock::~BufferBlock() {
  registered_ = {};
  ::munmap(memory_, count_ * kBufferBytes);
}

Result<std::shared_ptr<Domain>> Domain::open(const RdmaOptions& options, const sockaddr_storage& local) {
  const auto verbs = load_verbs();
  if (!verbs) return verbs.error();
  auto opened = open_device(**verbs, options, local);
  if (!opened) return opened.error();
  const std::shared_ptr<Domain> domain(new Domain(**verbs, std::move(*opened)));
  const int events = domain->events_descriptor();
  ::fcntl(events, F_SETFL, ::fcntl(events, F_GETFL) | O_NONBLOCK);
  domain->protection_ = domain->verbs_.alloc_pd(domain->device_.context);
  if (!domain->protection_) return verb_failure("cannot create a protection domain", errno);
  ibv_srq_init_attr wish{};
  wish.attr.max_wr =
      std::min<uint32_t>(kMostSharedReceives, static_cast<uint32_t>(domain->device_.limits.max_srq_wr));
  wish.attr.max_sge = 1;
  domain->receive_queue_ = domain->verbs_.create_srq(domain->protection_, &wish);
  if (!domain->receive_queue_) return verb_failure("cannot create a shared receive queue", errno);
  while (domain->number_ == 0) {
    if (::getrandom(&domain->number_, sizeof domain->number_, 0) < 0)
      return verb_failure("getrandom failed", errno);
  }
  return domain;
}

Domain::~Domain() {
  if (receive_queue_) verbs_.destroy_srq(receive_queue_);
  blocks_.clear();
  if (protection_) verbs_.dealloc_pd(protection_);
  verbs_.close_device(device_.context);
}

std::string Domain::text() const {
  return device_.name + ", port " + std::to_string(device_.port) + ", GID " +
         std::to_string(address().gid_index);
}

Result<void> Domain::look_again(const RdmaOptions& options, const sockaddr_storage& local) {
  if (auto good = take_events(); !good) return good;
  const auto found = find_address(verbs_, options, local, device_);
  if (!found) return found.error();
  const std::lock_guard lock(mutex_);
  address_ = *found;
  return {};
}

Result<void> Domain::take_events() {
  const std::lock_guard lock(mutex_);
  ibv_async_event event;
  while (!over_) {
    errno = 0;
    if (verbs_.get_async_event(device_.context, &event) == 0) {
      take_event(event);
      verbs_.ack_async_event(&event);
    } else if (errno == EINTR) {
      continue;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return {};
    } else {  // the descriptor of a device that was removed
      over_ = Error{ErrorCode::refused, "the RDMA device " + device_.name + " is gone"};
    }
  }
  return *over_;
}

void Domain::take_event(const ibv_async_event& event) {
  const std::string text = device_.name + " reports: " + verbs_.event_type_str(event.event_type);
  switch (event.event_type) {
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_SRQ_ERR:
      over_ = Error{ErrorCode::refused,
                    "the RDMA device failed, and with it the keys of the session (" + text + ")"};
      break;
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: over_ = Error{ErrorCode::malformed, text}; break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_QP_FATAL: failures_.fetch_add(1, std::memory_order_release); break;
    default:  // a port that is down may come back; transfers that cannot wait for it fail by themselves
      break;
  }
}

Result<Registered> Domain::add(void* start, uint64_t bytes, int access, int dma_buf) {
  ibv_mr* region = nullptr;
  errno = 0;
  if (dma_buf < 0) {
    region = verbs_.reg_mr(protection_, start, bytes, access);
  } else if (verbs_.reg_dmabuf_mr) {
    region = verbs_.reg_dmabuf_mr(protection_, 0, bytes, reinterpret_cast<uintptr_t>(start), dma_buf, access);
  } else {
    errno = EOPNOTSUPP;
  }
  if (region) return Registered(verbs_, region);
  const int error = errno;
  const bool limit = error == ENOMEM || error == EAGAIN || error == EPERM;  // EPERM: the limit is zero
  return Error{limit ? ErrorCode::limit : ErrorCode::unavailable,
               "cannot register " + std::to_string(bytes) + " bytes with " + device_.name + ": " +
                   std::generic_category().message(error) + (limit ? " (check 'ulimit -l')" : "")};
}

Result<std::unique_ptr<BufferBlock>> Domain::make_buffers(size_t count) {
  const size_t bytes = count * kBufferBytes;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return verb_failure("cannot allocate message buffers", errno);
  ::madvise(memory, bytes, MADV_DONTFORK);
  auto registered = add(memory, bytes, IBV_ACCESS_LOCAL_WRITE);
  if (!registered) {
    ::munmap(memory, bytes);
    return registered.error();
  }
  return std::make_unique<BufferBlock>(static_cast<std::byte*>(memory), count, std::move(*registered));
}

Result<void> Domain::add_receive_buffers(uint32_t count) {
  const std::lock_guard lock(mutex_);
  const uint32_t missing = count - std::min(count, unassigned_buffers_);
  if (missing != 0) {
    if (buffers_.size() + missing > kMostSharedReceives) {
      return Error{ErrorCode::limit, "the session has too many rdma connections"};
    }
    auto block = make_buffers(missing);
    if (!block) return block.error();
    blocks_.push_back(std::move(*block));
    for (uint32_t i = 0; i < missing; ++i) {
      buffers_.push_back({blocks_.back()->at(i), blocks_.back()->key()});
      if (auto posted = post(buffers_.back()); !posted) return posted;
      ++unassigned_buffers_;
    }
  }
  unassigned_buffers_ -= count;
  return {};
}

void Domain::release_receive_buffers(uint32_t count) {
  const std::lock_guard lock(mutex_);
  unassigned_buffers_ += count;
}

Result<void> Domain::post(ReceiveBuffer& buffer) {
  ibv_sge place{reinterpret_cast<uintptr_t>(buffer.data), kBufferBytes, buffer.key};
  ibv_recv_wr request{};
  request.wr_id = reinterpret_cast<uintptr_t>(&buffer);
  request.sg_list = &place;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_srq_recv(receive_queue_, &request, &bad))
    return verb_failure("cannot post a receive buffer", error);
  return {};
}

}  // namespace gpupool::transport::rdma
