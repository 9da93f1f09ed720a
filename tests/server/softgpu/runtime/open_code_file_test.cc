// Tests where compiled code is kept, and which files and folders are rejected as untrusted.
#include "server/softgpu/runtime/open_code_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool::softgpu;
using gpupool::testing::TemporaryFolder;

namespace {

constexpr uint64_t kLimit = 1 << 20;

unsigned mode_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

bool refused(const std::string& folder, const std::string& why) {
  const OpenedCodeFile opened = open_code_file(folder, kLimit);
  INFO(opened.problem);
  return opened.file == nullptr && opened.problem.find(why) != std::string::npos;
}

}  // namespace

TEST_CASE("creates a private folder and reuses its file") {
  const TemporaryFolder scratch;
  const std::string folder = scratch.path().string() + "/a/b";
  CodeKey key{};
  key[0] = 1;
  {
    const OpenedCodeFile opened = open_code_file(folder, kLimit);
    REQUIRE(opened.file);
    CHECK(opened.problem.empty());
    opened.file->add(key, std::vector<char>{'x'});
  }
  CHECK(mode_of(folder) == 0700);
  CHECK(mode_of(folder + "/code-1") == 0600);
  CHECK(open_code_file(folder, kLimit).file->find(key) == std::vector<char>{'x'});
}

TEST_CASE("uses the user's cache folder if SOFTGPU_CACHE is empty") {
  const TemporaryFolder scratch;
  ::setenv("HOME", (scratch.path().string() + "/home").c_str(), 1);
  ::unsetenv("XDG_CACHE_HOME");
  CHECK(open_code_file("", kLimit).file);
  CHECK(std::filesystem::exists(scratch.path().string() + "/home/.cache/gpupool/softgpu/code-1"));
  ::setenv("XDG_CACHE_HOME", (scratch.path().string() + "/xdg").c_str(), 1);
  CHECK(open_code_file("", kLimit).file);
  CHECK(std::filesystem::exists(scratch.path().string() + "/xdg/gpupool/softgpu/code-1"));
  ::unsetenv("XDG_CACHE_HOME");
  ::unsetenv("HOME");
  CHECK(refused("", "neither"));
}

TEST_CASE("rejects a folder or file that other users can access") {
  const TemporaryFolder scratch;
  const std::string folder = scratch.path().string() + "/code";
  REQUIRE(open_code_file(folder, kLimit).file);
  REQUIRE(::chmod(folder.c_str(), 0755) == 0);
  CHECK(refused(folder, folder + " is accessible to other users; set its mode to 0700"));
  REQUIRE(::chmod(folder.c_str(), 0700) == 0);
  REQUIRE(::chmod((folder + "/code-1").c_str(), 0620) == 0);
  CHECK(refused(folder, folder + "/code-1 is accessible to other users; set its mode to 0600"));
  REQUIRE(::unlink((folder + "/code-1").c_str()) == 0);
  REQUIRE(::symlink("elsewhere", (folder + "/code-1").c_str()) == 0);
  CHECK(refused(folder, "cannot open"));
  REQUIRE(::symlink(folder.c_str(), (scratch.path().string() + "/link").c_str()) == 0);
  CHECK(refused(scratch.path().string() + "/link", "cannot open"));
  CHECK(refused("relative", "not an absolute path"));
  if (::geteuid() == 0) {
    const std::string others = scratch.path().string() + "/others";
    REQUIRE(::mkdir(others.c_str(), 0700) == 0);
    REQUIRE(::chown(others.c_str(), 65534, 65534) == 0);
    CHECK(refused(others, "belongs to another user"));
  }
}

TEST_CASE("accepts off and a descriptor inherited from the parent process") {
  CHECK_FALSE(open_code_file("off", kLimit).file);
  CHECK(open_code_file("off", kLimit).problem.empty());
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK_FALSE(open_code_file("fd:" + std::to_string(nothing), kLimit).file);
  const int memory = ::memfd_create("code", MFD_CLOEXEC);
  REQUIRE(::ftruncate(memory, kLimit) == 0);
  CHECK(open_code_file("fd:" + std::to_string(memory), kLimit).file);
  CHECK(refused("fd:x", "must be the number of an open descriptor"));
  ::close(memory);
  ::close(nothing);
}
