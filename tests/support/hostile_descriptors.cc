#include "tests/support/hostile_descriptors.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace gpupool::testing {
namespace {

constexpr int kPassRights = 83;

int check(int result, const char* doing) {
  if (result < 0) throw std::runtime_error(std::string(doing) + ": " + std::strerror(errno));
  return result;
}

void refuse_to_set_pass_rights() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + 2 * sizeof(uint64_t)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPassRights, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof program / sizeof program[0], program};
  check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
  check(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "seccomp");
}

}  // namespace

void fill_and_linger(int connected, int seconds) {
  const std::string bytes(64 * 1024, 'x');
  while (::send(connected, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  const linger wish{1, seconds};
  check(::setsockopt(connected, SOL_SOCKET, SO_LINGER, &wish, sizeof wish), "SO_LINGER");
}

LingeringSocket::LingeringSocket() {
  const int listener = check(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in address{
      .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof address;
  check(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), "bind");
  check(::listen(listener, 1), "listen");
  check(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  lingers_ = check(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  check(::connect(lingers_, reinterpret_cast<sockaddr*>(&address), size), "connect");
  peer_ = check(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), "accept");
  ::close(listener);
  fill_and_linger(lingers_, kSeconds);
}

LingeringSocket::~LingeringSocket() {
  end_lingering();
  close();
}

void LingeringSocket::end_lingering() {
  if (peer_ >= 0) ::close(peer_);  // with unread data this sends RST, which ends the lingering
  peer_ = -1;
}

void LingeringSocket::close() {
  if (lingers_ < 0) return;
  // If the receiver has closed its copy already, this one is the last and lingers.
  std::promise<void> closed;
  auto done = closed.get_future();
  std::thread([socket = std::exchange(lingers_, -1), closed = std::move(closed)]() mutable {
    ::close(socket);
    closed.set_value();
  }).detach();
  done.wait_for(std::chrono::seconds(1));
}

int send_with_descriptors(int socket, std::string_view bytes, const std::vector<int>& descriptors) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  std::vector<char> space(CMSG_SPACE(descriptors.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  cmsghdr* const control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(control), descriptors.data(), descriptors.size() * sizeof(int));
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? errno : 0;
}

void without_pass_rights(const std::function<void()>& start) {
  std::exception_ptr failed;
  std::thread([&] {  // a seccomp filter cannot be removed, so confine it to a thread and its children
    try {
      refuse_to_set_pass_rights();
      start();
    } catch (...) {
      failed = std::current_exception();
    }
  })
      .join();
  if (failed) std::rethrow_exception(failed);
}

}  // namespace gpupool::testing
