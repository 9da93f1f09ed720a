// Tests locks between processes, and reads and writes of whole buffers.
#include "common/files/locked_file.h"

#include <sys/wait.h>

#include <string>

#include "common/descriptor.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::files;
using namespace std::chrono_literals;
using gpupool::testing::TemporaryFolder;

namespace {

// Returns whether another process gets a lock of the file.
bool other_process_locks(const std::string& path, LockOwner owner) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    const FileLock lock(file.number(), owner, 20ms);
    ::_exit(lock.held() ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status == 0;
}

}  // namespace

TEST_CASE("a locked file is refused to another process, for the lifetime of the lock") {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "text");
  const LockOwner owner = GENERATE(LockOwner::process, LockOwner::open_file);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  {
    const FileLock lock(file.number(), owner, 20ms);
    REQUIRE(lock.held());
    CHECK(!other_process_locks(path, owner));
  }
  CHECK(other_process_locks(path, owner));
}

TEST_CASE("a lock of a descriptor that cannot be locked fails at once") {
  const auto began = std::chrono::steady_clock::now();
  const FileLock lock(-1, LockOwner::process, 1h);
  CHECK(!lock.held());
  CHECK(std::chrono::steady_clock::now() - began < 1min);
}

TEST_CASE("reads are whole up to the end of the file, and failures are reported") {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "0123456789");
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(write_at(file.number(), "ab", 2, 4));
  std::string bytes(10, ' ');
  CHECK(read_at(file.number(), bytes.data(), 10, 0) == 10);
  CHECK(bytes == "0123ab6789");
  CHECK(read_at(file.number(), bytes.data(), 10, 7) == 3);
  CHECK(read_at(-1, bytes.data(), 1, 0) == -1);
  CHECK(!write_at(-1, "x", 1, 0));
}
