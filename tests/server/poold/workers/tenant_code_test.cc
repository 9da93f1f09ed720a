// Tests the files and folders in which poold keeps each tenant's compiled code: their owners and their size
// limits.
#include "server/poold/workers/tenant_code.h"

#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/server/worker/sandbox/confined_children.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"

using gpupool::server::CacheFolders;
using gpupool::server::TenantCode;

namespace {

constexpr uint64_t kMiB = 1 << 20;

ino_t inode(int file) {
  struct stat status {};
  REQUIRE(::fstat(file, &status) == 0);
  return status.st_ino;
}

}  // namespace

TEST_CASE("each tenant always gets its own file") {
  TenantCode code(512 * kMiB);
  const ino_t first = inode(code.file_of("a"));
  CHECK(inode(code.file_of("b")) != first);
  CHECK(inode(code.file_of("a")) == first);
}

TEST_CASE("the leases of a pool tenant share a file that no local tenant of that name gets") {
  TenantCode code(512 * kMiB);
  const ino_t first = inode(code.file_of("a/0123"));
  CHECK(inode(code.file_of("a/4567")) == first);
  CHECK(inode(code.file_of("a")) != first);
  CHECK(inode(code.file_of("b/0123")) != first);
}

TEST_CASE("a tenant's file can be neither enlarged nor truncated") {
  TenantCode code(512 * kMiB);
  const int file = code.file_of("a");
  CHECK(::ftruncate(file, 65 * kMiB) != 0);
  CHECK(::ftruncate(file, 1) != 0);
  char byte = 'x';
  CHECK(::pwrite(file, &byte, 1, 64 * kMiB) == -1);
  CHECK(::pwrite(file, &byte, 1, 64 * kMiB - 1) == 1);
  // One session cannot make the file read-only for the others.
  CHECK(::fcntl(file, F_ADD_SEALS, F_SEAL_WRITE) != 0);
}

TEST_CASE("the capacity limits the number of files and the least recently used one is removed") {
  TenantCode code(128 * kMiB);
  char byte = 'x';
  for (const char* const tenant : {"a", "b"}) REQUIRE(::pwrite(code.file_of(tenant), &byte, 1, 0) == 1);
  code.file_of("a");
  code.file_of("c");
  const auto has = [&](const char* tenant) {
    return ::pread(code.file_of(tenant), &byte, 1, 0) == 1 && byte == 'x';
  };
  CHECK(has("a"));
  CHECK_FALSE(has("b"));
  CHECK(TenantCode(0).file_of("a") == -1);
  CHECK(TenantCode(kMiB).file_of("a") >= 0);
}

TEST_CASE("tenants have their own folders in an unreadable parent folder that is removed with them") {
  auto folders = CacheFolders::open("nobody");
  REQUIRE(folders.ok());
  const std::string root = (*folders)->root();
  struct stat status {};
  REQUIRE(::stat(root.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0300);
  {
    TenantCode code(128 * kMiB, std::move(*folders));
    CHECK(code.folders() == root);
    const ino_t first = inode(code.folder_of("a"));
    CHECK(inode(code.folder_of("b")) != first);
    CHECK(inode(code.folder_of("a")) == first);
    REQUIRE(::mkdirat(code.folder_of("a"), "1", 0700) == 0);
    const int lost = ::dup(code.folder_of("b"));
    code.folder_of("a");
    code.folder_of("c");  // evicts b
    CHECK(gpupool::testing::eventually([&] { return ::fstat(lost, &status) == 0 && status.st_nlink == 0; }));
    ::close(lost);
    CHECK(inode(code.folder_of("a")) == first);
  }
  CHECK(::stat(root.c_str(), &status) != 0);
  CHECK(TenantCode(kMiB).folder_of("a") == -1);
  CHECK(TenantCode(kMiB).folders().empty());
}

TEST_CASE("poold goes on and keeps the folders if no thread can be started to remove them") {
  CHECK(gpupool::testing::in_child([](gpupool::testing::Checks& check) {
          constexpr uid_t kUser = 61002;  // RLIMIT_NPROC does not apply to root
          check(::geteuid() != 0 || ::setresuid(kUser, kUser, kUser) == 0);
          auto folders = CacheFolders::open("nobody");
          check(folders.ok());
          const auto first = (*folders)->make(), second = (*folders)->make();
          const rlimit none{0, 0};
          check(first.descriptor >= 0 && second.descriptor >= 0 && ::setrlimit(RLIMIT_NPROC, &none) == 0);
          (*folders)->share(first, kUser);
          (*folders)->remove(first);
          check(::fcntl(first.descriptor, F_GETFD) < 0);
          const std::string root = (*folders)->root();
          folders->reset();
          ::rmdir((root + "/" + first.name).c_str());
          ::rmdir((root + "/" + second.name).c_str());
          ::unlink((root + "/lock").c_str());
          check(::rmdir(root.c_str()) == 0);
        }) == 0);
}

TEST_CASE(
    "sessions of a tenant with different users share the folder and poold removes files of all of them") {
  if (::geteuid() != 0) return gpupool::testing::report_skip("only root's workers become other users");
  constexpr uid_t kEnded = 61000, kRunning = 61001;
  auto folders = CacheFolders::open("61000-61001");
  REQUIRE(folders.ok());
  TenantCode code(64 * kMiB, std::move(*folders));  // room for one tenant
  const int folder = ::dup(code.folder_of("a"));
  const auto make = [&](uid_t user, const std::string& name, mode_t mode) {  // as the driver does
    const auto before = static_cast<uid_t>(::setfsuid(user));
    const std::string file = name + "/entry";
    const bool made = ::mkdirat(folder, name.c_str(), 0700) == 0;
    const int entry = ::openat(folder, file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (mode != 0700) ::fchmodat(folder, name.c_str(), mode, 0);
    ::setfsuid(before);
    REQUIRE((made && entry >= 0));
    ::close(entry);
  };
  const auto make_deep = [&](uid_t user) {  // as a worker that tries to keep its folders from being removed
    const auto before = static_cast<uid_t>(::setfsuid(user));
    int inner = ::dup(folder);
    for (int depth = 0; depth < 50 && inner >= 0; ++depth) {
      const int outer = inner;
      ::mkdirat(outer, "deep", 0700);
      inner = ::openat(outer, "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      ::close(outer);
    }
    ::setfsuid(before);
    REQUIRE(inner >= 0);
    ::close(inner);
  };
  const auto mode_of = [&](const char* name) {
    struct stat status {};
    return ::fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0 ? status.st_mode & 0777 : 0;
  };
  make(kEnded, "1", 0700);
  make_deep(kEnded);
  make(kRunning, "2", 0700);
  make(kRunning, "3", 0);
  code.session_ended("another", kEnded);
  code.session_ended("a", kEnded);
  CHECK(gpupool::testing::eventually([&] { return mode_of("1/entry") == 0666; }));
  CHECK(mode_of("1") == 0777);
  CHECK(mode_of("2") == 0700);
  CHECK(mode_of("2/entry") == 0600);
  const auto before = static_cast<uid_t>(::setfsuid(kRunning));
  const int shared = ::openat(folder, "1/entry", O_RDWR | O_CLOEXEC),
            made = ::openat(folder, "1/another", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ::setfsuid(before);
  CHECK((shared >= 0 && made >= 0));
  for (const int file : {shared, made}) ::close(file);
  code.folder_of("b");  // evicts a
  struct stat status {};
  CHECK(gpupool::testing::eventually([&] { return ::fstat(folder, &status) == 0 && status.st_nlink == 0; }));
  ::close(folder);
}

TEST_CASE("workers that run as root get no driver cache") {
  if (::geteuid() != 0) return gpupool::testing::report_skip("only root's workers can be root");
  CHECK_FALSE(CacheFolders::open("").ok());
}
