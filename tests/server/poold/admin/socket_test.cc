#include "server/poold/admin/socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::server;
namespace fs = std::filesystem;

namespace {

bool can_connect(const std::string& path) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const bool connected = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(socket);
  return connected;
}

mode_t mode_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
}

}  // namespace

TEST_CASE("the socket is accessible to its user only and is unlinked at the end") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() / "made" / "poold.sock";
  {
    const auto socket = OwnedSocket::listen(path);
    REQUIRE(socket);
    CHECK(mode_of(path) == 0600);
    CHECK(mode_of(path + ".lock") == 0600);
    CHECK(mode_of(folder.path() / "made") == 0700);
    CHECK(can_connect(path));
  }
  CHECK_FALSE(fs::exists(path));
  CHECK_FALSE(fs::exists(path + ".lock"));
}

TEST_CASE("the socket of a running process is not replaced") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() / "poold.sock";
  const auto socket = OwnedSocket::listen(path);
  REQUIRE(socket);
  const auto second = OwnedSocket::listen(path);
  REQUIRE_FALSE(second);
  CHECK(second.error().code == ErrorCode::refused);
  CHECK(can_connect(path));
}

TEST_CASE("a dead process's socket is replaced") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() / "poold.sock";
  const pid_t child = ::fork();
  if (child == 0) {
    const auto socket = OwnedSocket::listen(path);
    ::_exit(socket ? 0 : 1);  // no clean-up: the socket file remains
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(fs::exists(path));
  CHECK_FALSE(can_connect(path));
  const auto socket = OwnedSocket::listen(path);
  REQUIRE(socket);
  CHECK(can_connect(path));
}

TEST_CASE("a file that is not a socket is not replaced") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("precious", "data");
  const auto socket = OwnedSocket::listen(path);
  REQUIRE_FALSE(socket);
  CHECK(socket.error().code == ErrorCode::invalid);
  CHECK(fs::file_size(path) == 4);
  CHECK_FALSE(fs::exists(path + ".lock"));
  CHECK_FALSE(OwnedSocket::listen(""));
  CHECK_FALSE(OwnedSocket::listen("/tmp/" + std::string(200, 'x')));
  CHECK_FALSE(OwnedSocket::listen("/proc/nowhere/poold.sock"));
  if (::geteuid() == 0) {  // only root can change a folder's owner
    const fs::path others = folder.path() / "others";
    fs::create_directory(others);
    REQUIRE(::chown(others.c_str(), 12345, 12345) == 0);
    const auto there = OwnedSocket::listen(others / "poold.sock");
    REQUIRE_FALSE(there);
    CHECK(there.error().code == ErrorCode::invalid);
  } else {
    testing::report_skip("only root can give a folder away");
  }
}
