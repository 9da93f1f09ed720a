#include "protocol/transport/shm/listener.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "protocol/transport/shm/address.h"
#include "protocol/transport/shm/connection.h"
#include "protocol/transport/socket/descriptors.h"
#include "protocol/transport/socket/listener.h"

namespace gpupool::transport::shm {
namespace {

class ShmListener final : public SocketListener {
 public:
  ShmListener(int socket, int wake, const Endpoint& endpoint, const Options& options)
      : SocketListener(socket, wake, endpoint, options, adopt), path_(endpoint.host) {
    if (path_.starts_with('@') || ::lstat(path_.c_str(), &made_) != 0) path_.clear();
  }
  ~ShmListener() override { remove(); }

  // Leaves the connection in the queue if there is no descriptor for its eventfd: closing it here could block
  // on descriptors in unread messages.
  Result<std::unique_ptr<Connection>> accept(Deadline deadline) override {
    const int first = ::fcntl(descriptor(), F_DUPFD_CLOEXEC, 0),
              second = ::fcntl(descriptor(), F_DUPFD_CLOEXEC, 0);
    const int error = errno;
    if (first >= 0) ::close(first);
    if (second < 0)
      return Error{ErrorCode::unavailable, "cannot accept a connection on " + endpoint().text() + ": " +
                                               std::generic_category().message(error)};
    ::close(second);
    return SocketListener::accept(deadline);
  }

  void close() override {
    SocketListener::close();
    remove();
  }

 private:
  void remove() {
    struct stat now {};
    // Remove only the file made here: another process may have replaced it.
    if (path_.empty() || ::lstat(path_.c_str(), &now) != 0) return;
    if (now.st_dev == made_.st_dev && now.st_ino == made_.st_ino) ::unlink(path_.c_str());
  }

  std::string path_;
  struct stat made_ {};
};

// True if the path is a socket that nobody listens on.
bool is_left_over(const Address& address) {
  struct stat about {};
  if (::lstat(address.bytes.sun_path, &about) != 0 || !S_ISSOCK(about.st_mode)) return false;
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return false;
  const bool refused = ::connect(probe, address.get(), address.size) != 0 && errno == ECONNREFUSED;
  ::close(probe);
  return refused;
}

int bind_to(int socket, const Address& address) {
  if (::bind(socket, address.get(), address.size) == 0) return 0;
  const int error = errno;
  if (error != EADDRINUSE || address.bytes.sun_path[0] == '\0' || !is_left_over(address)) return error;
  ::unlink(address.bytes.sun_path);
  return ::bind(socket, address.get(), address.size) == 0 ? 0 : errno;
}

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options) {
  const auto address = make_address(endpoint);
  if (!address) return address.error();
  const auto failure = [&](int error) {
    return cannot_listen(endpoint, std::generic_category().message(error),
                         "check that the folder exists and that no other poold listens there");
  };
  const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return failure(errno);
  allow_descriptors(made, false);  // ShmConnection::offer() allows them, once a worker has the connection
  int error = bind_to(made, *address);
  // The folder's permissions decide who may connect; poold authenticates sessions as it does over TCP.
  if (error == 0 && address->bytes.sun_path[0] != '\0') ::chmod(address->bytes.sun_path, 0666);
  if (error == 0 && ::listen(made, kBacklog) != 0) error = errno;
  const int wake = error == 0 ? ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
  if (error == 0 && wake < 0) error = errno;
  if (error != 0) {
    ::close(made);
    return failure(error);
  }
  return std::unique_ptr<Listener>(std::make_unique<ShmListener>(made, wake, endpoint, options));
}

Result<std::unique_ptr<Listener>> take_over(int socket, const Endpoint& endpoint, const Options& options) {
  const auto wake = make_wake(socket, endpoint);
  if (!wake) return wake.error();
  return std::unique_ptr<Listener>(std::make_unique<ShmListener>(socket, *wake, endpoint, options));
}

}  // namespace gpupool::transport::shm
