// Tests lease files when other users of the machine create files and folders in advance where they can write.
#include "client/lease/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::client;
using Catch::Matchers::ContainsSubstring;
using gpupool::testing::report_skip;
using gpupool::testing::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

constexpr uid_t kNobody = 65534;

std::vector<LeasedServer> servers(const std::string& token) {
  return {{transport::Endpoint{"tcp", "192.0.2.1", 7}, token}};
}

// A folder as pool-lease creates it, in a runtime folder of the test.
struct Leased {
  Leased() {
    ::setenv("XDG_RUNTIME_DIR", runtime.path().c_str(), 1);
    const auto made = make_lease_folder();
    REQUIRE(made);
    file = *made;
    folder = fs::path(file).parent_path();
  }
  std::string why_not_read() const {
    const auto read = read_lease_file(file);
    return read ? "" : read.error().message;
  }
  std::string why_not_written() const {
    const auto written = write_lease_file(file, servers("secret"));
    return written ? "" : written.error().message;
  }

  TemporaryFolder runtime;
  std::string file, folder;
};

mode_t mode_of(const std::string& path) {
  struct stat about {};
  REQUIRE(::lstat(path.c_str(), &about) == 0);
  return about.st_mode & 07777;
}

}  // namespace

TEST_CASE("a lease file has a private folder and both are removed together") {
  const Leased leased;
  CHECK(mode_of(leased.folder) == 0700);
  REQUIRE(write_lease_file(leased.file, servers("one")));
  REQUIRE(write_lease_file(leased.file, servers("two")));
  CHECK(mode_of(leased.file) == 0600);
  const auto read = read_lease_file(leased.file);
  REQUIRE(read);
  REQUIRE(read->size() == 1);
  CHECK(read->front().token == "two");
  CHECK(read->front().endpoint.text() == "tcp://192.0.2.1:7");
  remove_lease_file(leased.file);
  CHECK(fs::is_empty(leased.runtime.path()));
}

TEST_CASE("does not write tokens into a prepared file") {
  const Leased leased;
  const std::string prepared = leased.file + ".new";
  SECTION("a file that another process has open") {
    const int open = ::open(prepared.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    REQUIRE(open >= 0);
    CHECK(write_lease_file(leased.file, servers("secret")));
    struct stat about {};
    CHECK(::fstat(open, &about) == 0);
    CHECK(about.st_size == 0);
    ::close(open);
  }
  SECTION("a link to another file") {
    const std::string other = leased.runtime.write("other", "as it was");
    fs::create_symlink(other, prepared);
    CHECK(write_lease_file(leased.file, servers("secret")));
    CHECK(fs::file_size(other) == 9);
  }
  CHECK(mode_of(leased.file) == 0600);
  CHECK(read_lease_file(leased.file));
}

TEST_CASE("refuses a lease file in a folder that others can write") {
  const Leased leased;
  REQUIRE(write_lease_file(leased.file, servers("secret")));
  for (const mode_t mode : {0777, 01777, 0720, 0702}) {
    INFO(std::oct << mode);
    REQUIRE(::chmod(leased.folder.c_str(), mode) == 0);
    CHECK_THAT(leased.why_not_read(), ContainsSubstring("its folder is writable by other users"));
    CHECK_THAT(leased.why_not_written(), ContainsSubstring("its folder is writable by other users"));
  }
  REQUIRE(::chmod(leased.folder.c_str(), 0700) == 0);
  CHECK(leased.why_not_read().empty());
}

TEST_CASE("does not follow a symbolic link in place of the lease folder") {
  const Leased leased;
  const std::string moved = leased.runtime.path() / "moved";
  fs::rename(leased.folder, moved);
  fs::create_directory_symlink(moved, leased.folder);
  CHECK_THAT(leased.why_not_written(), ContainsSubstring("cannot be found"));
  CHECK(fs::is_empty(moved));
}

TEST_CASE("refuses a lease file that is writable by others or a symbolic link or a pipe") {
  const Leased leased;
  REQUIRE(write_lease_file(leased.file, servers("secret")));
  REQUIRE(::chmod(leased.file.c_str(), 0622) == 0);
  CHECK_THAT(leased.why_not_read(), ContainsSubstring("it is writable by other users"));
  REQUIRE(::chmod(leased.file.c_str(), 0600) == 0);
  const std::string moved = leased.folder + "/moved";
  fs::rename(leased.file, moved);
  fs::create_symlink(moved, leased.file);
  CHECK_FALSE(leased.why_not_read().empty());
  fs::remove(leased.file);
  REQUIRE(::mkfifo(leased.file.c_str(), 0600) == 0);
  CHECK_THAT(leased.why_not_read(), ContainsSubstring("is not a regular file"));
}

TEST_CASE("refuses a lease file or folder that another user owns") {
  if (::geteuid() != 0) return report_skip("only root can give files to other users");
  const Leased leased;
  REQUIRE(write_lease_file(leased.file, servers("secret")));
  REQUIRE(::chown(leased.file.c_str(), kNobody, kNobody) == 0);
  CHECK_THAT(leased.why_not_read(), ContainsSubstring("it is owned by another user"));
  REQUIRE(::chown(leased.file.c_str(), 0, 0) == 0);
  REQUIRE(::chown(leased.folder.c_str(), kNobody, kNobody) == 0);
  CHECK_THAT(leased.why_not_read(), ContainsSubstring("its folder is owned by another user"));
  CHECK_THAT(leased.why_not_written(), ContainsSubstring("its folder is owned by another user"));
}

TEST_CASE("a lease file says where the lease is moving to") {
  const Leased leased;
  auto moving = servers("here");
  moving.push_back(servers("beside").front());
  moving.front().next = {{transport::Endpoint{"tcp", "192.0.2.2", 8}, "there"}};
  REQUIRE(write_lease_file(leased.file, moving));
  const auto read = read_lease_file(leased.file);
  REQUIRE(read);
  REQUIRE(read->size() == 2);
  REQUIRE(read->front().next.size() == 1);
  CHECK(read->front().token == "here");
  CHECK(read->front().next.front().token == "there");
  CHECK(read->front().next.front().endpoint.text() == "tcp://192.0.2.2:8");
  CHECK(read->back().next.empty());
  for (const char* const wrong : {"> tcp://192.0.2.2:8 there\n", "tcp://192.0.2.1:7 a\n> tcp://192.0.2.2:8\n",
                                  "tcp://192.0.2.1:7 a\n> tcp://192.0.2.2:8 b\n> tcp://192.0.2.3:8 c\n"}) {
    INFO(wrong);
    CHECK_FALSE(parse_lease("FILE", std::string("gpupool lease 1\n") + wrong));
  }
}

TEST_CASE("refuses tokens that would add servers to the lease file") {
  const Leased leased;
  auto moving = servers("here");
  moving.front().next = servers("x\ntcp://198.51.100.1:9 y");
  CHECK_FALSE(write_lease_file(leased.file, moving));
  for (const char* const token : {"x\ntcp://198.51.100.1:9 y", "two words", "\x1b[2J"}) {
    CHECK_THAT(write_lease_file(leased.file, servers(token)).error().message,
               ContainsSubstring("spaces or control characters"));
  }
  CHECK_FALSE(fs::exists(leased.file));
}
