#include "scheduler/admin/poold.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <vector>

#include "common/admission/received_limits.h"
#include "protocol/control/admin_address.h"

namespace gpupool::admin {
namespace {

constexpr std::string_view kPrefix = "poold-";
constexpr std::string_view kSuffix = ".sock";

// Returns true if no process listens on this socket, because its poold was killed. Returns false on other
// errors, such as a missing permission.
bool is_abandoned(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int connection = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (connection < 0) return false;
  const bool refused =
      ::connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno == ECONNREFUSED;
  ::close(connection);
  return refused;
}

std::vector<std::string> sockets_here() {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(socket_folder(), error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix) && !is_abandoned(entry.path()))
      found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string port_of(const std::string& socket) {
  const std::string name = std::filesystem::path(socket).filename();
  return name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
}

std::shared_ptr<grpc::Channel> open_channel(const std::string& socket) {
  grpc::ChannelArguments arguments;
  limit_received(arguments, kMaxReplyBytes);
  // So that a new channel connects at once, even if an earlier one has failed.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + std::filesystem::absolute(socket).string(),
                                   grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

std::string find_socket(const std::string& address) {
  if (address.starts_with("unix:")) {
    if (address.size() == 5) throw Failure(kExitUsage, "--poold unix:PATH: the path is missing");
    return address.substr(5);
  }
  if (!address.empty()) {
    unsigned port = 0;
    const auto read = std::from_chars(address.data(), address.data() + address.size(), port);
    if (read.ec != std::errc() || read.ptr != address.data() + address.size() || port == 0) {
      throw Failure(kExitUsage, "--poold: '" + address + "' is neither unix:PATH nor a port");
    }
    return default_socket(port);
  }
  const auto found = sockets_here();
  if (found.size() == 1) return found[0];
  if (found.empty()) {
    throw Failure(kExitUnreachable,
                  "no poold found in " + socket_folder() +
                      ": it is not running, runs as another user, or was started with --admin-socket PATH; "
                      "in that case use --poold unix:PATH");
  }
  std::string ports;
  for (const std::string& socket : found) ports += (ports.empty() ? "" : ", ") + port_of(socket);
  throw Failure(kExitUsage, "several poolds run on this host; choose one with --poold: " + ports);
}

PooldClient::PooldClient(const std::string& socket)
    : socket_(socket), stub_(Admin::NewStub(open_channel(socket))) {
  struct stat status {};
  if (::stat(socket.c_str(), &status) == 0) {
    if (status.st_uid == 0 || status.st_uid == ::geteuid() || ::geteuid() == 0) return;
    throw Failure(kExitUnreachable,
                  "'" + socket + "' belongs to another user: only poold's user and root can administer it");
  }
  throw Failure(kExitUnreachable,
                "no admin socket '" + socket +
                    "': poold is not running there, or was started with another --admin-socket");
}

void PooldClient::check(const grpc::Status& status) const {
  switch (status.error_code()) {
    case grpc::StatusCode::OK: return;
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::RESOURCE_EXHAUSTED: throw Failure(kExitRefused, status.error_message());
    case grpc::StatusCode::UNIMPLEMENTED:
      throw Failure(kExitRefused, "this poold is too old for this command");
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      throw Failure(kExitUnreachable, "the poold at '" + socket_ + "' does not answer");
    default: break;
  }
  if (::access(socket_.c_str(), W_OK) != 0 && errno == EACCES) {
    throw Failure(kExitUnreachable,
                  "permission denied for '" + socket_ + "': only poold's user and root can administer it");
  }
  throw Failure(kExitUnreachable, "no poold answers at '" + socket_ + "' (" + status.error_message() +
                                      "): it has ended, is shutting down, or denied access");
}

}  // namespace gpupool::admin
