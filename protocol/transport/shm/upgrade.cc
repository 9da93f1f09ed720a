// Sets up the rings of a ShmConnection, and passes descriptors over its Unix socket.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "protocol/transport/deadline.h"
#include "protocol/transport/shm/connection.h"
#include "protocol/transport/socket/descriptors.h"

namespace gpupool::transport::shm {
namespace {

constexpr size_t kControlBytes = 4096;  // bytes in front of the two rings
constexpr size_t kMostInMessage = 4;
constexpr size_t kLeastRingBytes = kStepBytes;
constexpr size_t kMostRingBytes = 64u << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Sent by the server with two descriptors: the memfd, and the client's end of the socket pair for senders'
// doorbells.
struct Offer {
  uint32_t magic = 0x474e4952;  // "RING"
  uint32_t ring_bytes = kRingBytes;
};

union ControlSpace {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int) * kMostInMessage)];
};

Error system_error(const char* doing) {
  return {ErrorCode::unavailable, std::string(doing) + ": " + std::generic_category().message(errno)};
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace

Result<void> ShmConnection::upgrade(Side side, Deadline deadline) {
  auto done = side == Side::server ? send_rings(deadline) : receive_rings(deadline);
  if (done) upgraded_.store(true, std::memory_order_release);
  return done;
}

Result<void> ShmConnection::send_rings(Deadline deadline) {
  allow_descriptors(socket(), true);  // before the client learns of the rings and sends descriptors
  const Descriptor memory(::memfd_create("gpupool-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ::ftruncate(memory.get(), kControlBytes + 2 * kRingBytes) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) {
    return system_error("cannot create shared memory");
  }
  if (auto mapped = map(memory.get(), kRingBytes, Side::server); !mapped) return mapped;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return system_error("cannot create a socket pair");
  }
  rings_.sender_doorbells = ends[0];
  const Descriptor theirs(ends[1]);
  const int sent[] = {memory.get(), theirs.get()};
  const Offer offer;
  return send_descriptors(sent, std::as_bytes(std::span(&offer, 1)), deadline);
}

Result<void> ShmConnection::receive_rings(Deadline deadline) {
  const auto memory = receive_descriptor(deadline);
  if (!memory) return memory.error();
  const Descriptor rings(*memory);
  const auto doorbells = receive_descriptor(deadline);
  if (!doorbells) return doorbells.error();
  rings_.sender_doorbells = *doorbells;
  struct stat about {};
  int type = 0;
  socklen_t size = sizeof type;
  const int seals = ::fcntl(rings.get(), F_GET_SEALS);
  const bool sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  if (!sealed || ::fstat(rings.get(), &about) != 0 ||
      ::getsockopt(rings_.sender_doorbells, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM ||
      about.st_size < static_cast<off_t>(kControlBytes + 2 * kLeastRingBytes)) {
    return Error{ErrorCode::malformed,
                 peer() + " sent descriptors that are not sealed shared memory and a stream socket"};
  }
  const size_t ring_bytes = (static_cast<size_t>(about.st_size) - kControlBytes) / 2;
  if (!std::has_single_bit(ring_bytes) || ring_bytes > kMostRingBytes) {
    return Error{ErrorCode::malformed, peer() + " sent shared memory of an invalid size"};
  }
  return map(rings.get(), ring_bytes, Side::client);
}

Result<void> ShmConnection::map(int memory, size_t ring_bytes, Side side) {
  const size_t size = kControlBytes + 2 * ring_bytes;
  void* const start = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (start == MAP_FAILED) return system_error("cannot map shared memory");
  ::madvise(start, size, MADV_DONTFORK);  // a forked child must not use its parent's session
  rings_.memory = static_cast<std::byte*>(start);
  rings_.size = size;
  auto* const controls = reinterpret_cast<RingControl*>(start);  // all zeros: the memfd is new
  std::byte* const data = rings_.memory + kControlBytes;
  const size_t out = side == Side::client ? 0 : 1;
  rings_.out.emplace(controls[out], data + out * ring_bytes, ring_bytes);
  rings_.in.emplace(controls[1 - out], data + (1 - out) * ring_bytes, ring_bytes);
  return {};
}

Result<void> ShmConnection::send_descriptors(std::span<const int> descriptors,
                                             std::span<const std::byte> bytes, Deadline deadline) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  ControlSpace space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.bytes;
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* const control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(control), descriptors.data(), descriptors.size_bytes());
  while (::sendmsg(socket(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return failure(errno, "sending a descriptor to");
    if (passed(deadline)) return Error{ErrorCode::lost, "sending to " + peer() + " timed out"};
    const auto ready = SocketConnection::wait(false, true, deadline);
    if (!ready) return ready.error();
  }
  return {};
}

Result<void> ShmConnection::receive_doorbells() {
  while (true) {
    char bells[64];
    iovec part{bells, sizeof bells};
    ControlSpace space{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space.bytes;
    message.msg_controllen = sizeof space.bytes;
    const ssize_t received = ::recvmsg(socket(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (received <= 0) {
      peer_gone_.store(true, std::memory_order_release);
      return {};
    }
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
      if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
      for (size_t offset = 0; offset + sizeof(int) <= at->cmsg_len - CMSG_LEN(0); offset += sizeof(int)) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(at) + offset, sizeof descriptor);
        descriptors_.push_back(descriptor);
      }
    }
    if (descriptors_.size() > kMostDescriptors) {
      return Error{ErrorCode::malformed, peer() + " sent more than " + std::to_string(kMostDescriptors) +
                                             " descriptors without commands for them"};
    }
  }
}

}  // namespace gpupool::transport::shm
