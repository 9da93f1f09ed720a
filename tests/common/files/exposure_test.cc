#include "common/files/exposure.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::files;
using gpupool::testing::TemporaryFolder;

namespace {

constexpr uid_t kRoot = 0, kSomebody = 70'123;
constexpr gid_t kRootsGroup = 0, kTheirs = 70'456;

struct stat file_of(uid_t user, gid_t group, mode_t mode) {
  struct stat about {};
  about.st_uid = user;
  about.st_gid = group;
  about.st_mode = S_IFREG | mode;
  return about;
}

struct Case {
  uid_t user;
  gid_t group;
  mode_t mode;
  bool readable, writable;
};

}  // namespace

TEST_CASE("group read access is allowed only on files of root with a group of root or the process") {
  const gid_t own = ::getegid();
  for (const Case& one :
       {Case{kSomebody, own, 0600, false, false}, Case{kSomebody, own, 0400, false, false},
        Case{kSomebody, own, 0640, true, false}, Case{kSomebody, kTheirs, 0604, true, false},
        Case{kSomebody, own, 0620, false, true}, Case{kSomebody, own, 0602, false, true},
        Case{kSomebody, own, 0666, true, true}, Case{kRoot, own, 0640, false, false},
        Case{kRoot, kRootsGroup, 0440, false, false}, Case{kRoot, kTheirs, 0640, true, false},
        Case{kRoot, own, 0644, true, false}, Case{kRoot, own, 0660, false, true}}) {
    INFO("user " << one.user << ", group " << one.group << ", mode " << std::oct << one.mode);
    const OthersAccess exposure = access_of_others(file_of(one.user, one.group, one.mode));
    CHECK(exposure.readable == one.readable);
    CHECK(exposure.writable == one.writable);
  }
}

TEST_CASE("an unsafe file is rejected with its path and the chmod to run") {
  const TemporaryFolder folder;
  const std::string file = folder.write_secret("server.key", "secret");
  CHECK(check_secret(file));
  std::filesystem::permissions(file, std::filesystem::perms(0644));
  CHECK_THAT(check_secret(file).error().message,
             Catch::Matchers::ContainsSubstring("refusing to use '" + file +
                                                "': other users can read it; run chmod 600"));
  CHECK(check_not_writable(file));
  std::filesystem::permissions(file, std::filesystem::perms(0622));
  CHECK_THAT(check_secret(file).error().message,
             Catch::Matchers::ContainsSubstring("other users can write it") &&
                 Catch::Matchers::ContainsSubstring("chmod go-w"));
  CHECK_THAT(check_not_writable(file).error().message,
             Catch::Matchers::ContainsSubstring("other users can write it"));
}

TEST_CASE("checks the target of a symbolic link and of an open file") {
  const TemporaryFolder folder;
  const std::string file = folder.write("token", "secret"), link = folder.path() / "link";
  std::filesystem::permissions(file, std::filesystem::perms(0604));
  std::filesystem::create_symlink(file, link);
  CHECK_FALSE(check_secret(link));
  const int open = ::open(link.c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(open >= 0);
  CHECK_FALSE(check_secret(open, link));
  ::fchmod(open, 0600);
  CHECK(check_secret(open, link));
  ::close(open);
  CHECK(check_secret(link));
}

TEST_CASE("accepts missing files and character devices") {
  CHECK(check_secret("/nowhere/at/all"));
  CHECK(check_not_writable("/nowhere/at/all"));
  CHECK(check_secret("/dev/null"));
  CHECK(check_secret(""));
}
