// Tests that poold serves no caller of its admin socket that has ended, because it may have been a worker.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/server/poold/admin/admin_client.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

// Runs in a child process: connects, writes the beginning of a gRPC connection, and ends.
[[noreturn]] void call_and_exit(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  constexpr std::string_view kBegin = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const bool done =
      ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::send(socket, kBegin.data(), kBegin.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(kBegin.size());
  ::_exit(done ? 0 : 1);
}

}  // namespace

TEST_CASE("a caller that has ended before poold accepts it is not served") {
  const PooldProcess poold(FAKE_DEVICE_LIBRARY);
  const std::string path = poold.admin_socket();
  stop(poold.pid());
  const pid_t child = ::fork();
  if (child == 0) call_and_exit(path);
  int status = -1;
  const bool ended = child > 0 && ::waitpid(child, &status, 0) == child;
  ::kill(poold.pid(), SIGCONT);
  REQUIRE(ended);
  REQUIRE(status == 0);
  CHECK(poold.await_log("admin_denied"));
  CHECK(AdminClient(poold).health().pid() == poold.pid());
}
