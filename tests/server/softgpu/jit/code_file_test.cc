// Tests the file that keeps compiled code between processes: lookup, eviction, and damaged files.
#include "server/softgpu/jit/code_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tests/server/softgpu/jit/fake_executor.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

// A temporary file, removed at the end of the test.
class Scratch {
 public:
  Scratch() : descriptor_(::mkstemp(path_)) { REQUIRE(descriptor_ >= 0); }
  ~Scratch() {
    ::close(descriptor_);
    ::unlink(path_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  int open() const { return ::open(path_, O_RDWR | O_CLOEXEC); }
  uint64_t size() const {
    struct stat status {};
    ::fstat(descriptor_, &status);
    return static_cast<uint64_t>(status.st_size);
  }
  // Inverts each byte from offset `first` on.
  void damage(uint64_t first) {
    for (uint64_t at = first; at < size(); ++at) {
      char byte = 0;
      REQUIRE(::pread(descriptor_, &byte, 1, static_cast<off_t>(at)) == 1);
      byte = static_cast<char>(~byte);
      REQUIRE(::pwrite(descriptor_, &byte, 1, static_cast<off_t>(at)) == 1);
    }
  }
  void cut(uint64_t bytes) { REQUIRE(::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0); }

 private:
  char path_[32] = "/tmp/gpupool-code-XXXXXX";
  int descriptor_;
};

constexpr uint64_t kLimit = 64 << 10;

CodeKey key(uint32_t number) {
  CodeKey made{};
  std::memcpy(made.data(), &number, sizeof number);
  made[31] = 1;
  return made;
}

std::vector<char> content(uint32_t number, size_t size = 3000) {
  return std::vector<char>(size, static_cast<char>(number * 7 + 1));
}

const std::string kKernels =
    ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p) { .reg .b64 %d; .reg "
    ".b32 %r;\n"
    "ld.param.u64 %d, [p]; mov.u32 %r, 4711; st.global.u32 [%d], %r; ret; }\n";

// Runs kernel k, whose result is always the same. True if its code came from the file.
bool run_cached(const std::shared_ptr<CodeFile>& file, const CompileOptions& like = {}) {
  CompileOptions options = like;
  options.code_file = file;
  const Loaded loaded({kKernels}, options);
  auto* out = device_array(std::vector<uint32_t>(1));
  const FakeResult result = loaded.run("k", {}, out);
  CHECK(result.fault == FaultKind::none);
  CHECK(*out == 4711);
  return loaded.program().came_from_cache(*loaded.program().find_kernel("k"));
}

}  // namespace

TEST_CASE("a process finds code that another process cached") {
  const Scratch scratch;
  CodeFile first(scratch.open(), kLimit), second(scratch.open(), kLimit);
  CHECK_FALSE(second.find(key(1)));
  first.add(key(1), content(1));
  first.add(key(2), {});
  CHECK(second.find(key(1)) == content(1));
  CHECK(second.find(key(2)) == std::vector<char>());
  CHECK_FALSE(second.find(key(3)));
  second.add(key(3), content(3));
  CHECK(first.find(key(3)) == content(3));
}

TEST_CASE("damaged entries are not used and can be replaced") {
  Scratch scratch;
  const auto file = [&] { return CodeFile(scratch.open(), kLimit); };
  file().add(key(1), content(1));
  const uint64_t one = scratch.size();
  file().add(key(2), content(2));
  const uint64_t both = scratch.size();
  SECTION("in the content") {
    scratch.damage(both - 100);
    CHECK_FALSE(file().find(key(2)));
    CHECK(file().find(key(1)) == content(1));
  }
  SECTION("in an entry's header") {
    scratch.damage(one);
    CHECK_FALSE(file().find(key(2)));
  }
  SECTION("in the file's header") {
    scratch.damage(0);
    CHECK_FALSE(file().find(key(1)));
  }
  SECTION("an end that is missing") {
    scratch.cut(both - 1000);
    CHECK_FALSE(file().find(key(2)));
  }
  SECTION("nothing left") {
    scratch.cut(0);
    CHECK_FALSE(file().find(key(1)));
  }
  file().add(key(2), content(2));
  CHECK(file().find(key(2)) == content(2));
}

TEST_CASE("the file stays within its limit and keeps recently used entries") {
  const Scratch scratch;
  CodeFile file(scratch.open(), kLimit);
  for (uint32_t n = 0; n < 100; ++n) {
    file.add(key(n), content(n));
    CHECK(scratch.size() <= kLimit);
    CHECK(file.find(key(0)) == content(0));
  }
  CHECK(file.find(key(99)) == content(99));
  CHECK_FALSE(file.find(key(1)));
  file.add(key(200), content(200, kLimit / 2));
  CHECK_FALSE(file.find(key(200)));  // too large to evict all others for it
}

TEST_CASE("a file of fixed size accepts entries without growing") {
  const int memory = ::memfd_create("code", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(memory, kLimit) == 0);
  REQUIRE(::fcntl(memory, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
  CodeFile file(memory, kLimit);
  for (uint32_t n = 0; n < 100; ++n) {
    file.add(key(n), content(n));
    CHECK(file.find(key(n)) == content(n));
  }
}

TEST_CASE("concurrent processes neither corrupt the file nor get each other's code") {
  const Scratch scratch;
  std::vector<pid_t> children;
  for (uint32_t child = 0; child < 8; ++child) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      CodeFile file(scratch.open(), kLimit);
      for (uint32_t round = 0; round < 200; ++round) {
        // 40 do not fit, so entries are evicted and rewritten all the time.
        const uint32_t number = (round * 5 + child) % 40;
        if (const auto found = file.find(key(number)); found && *found != content(number)) ::_exit(1);
        file.add(key(number), content(number));
      }
      ::_exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
  }
  CHECK(scratch.size() <= kLimit);
  CodeFile file(scratch.open(), kLimit);
  size_t found = 0;
  for (uint32_t number = 0; number < 40; ++number)
    if (const auto kept = file.find(key(number))) {
      CHECK(*kept == content(number));
      ++found;
    }
  CHECK(found > 3);
}

TEST_CASE("processes compile a kernel once unless the options differ or the code is damaged") {
  Scratch scratch;
  const auto file = [&] { return std::make_shared<CodeFile>(scratch.open(), kLimit); };
  CHECK_FALSE(run_cached(file()));
  CHECK(run_cached(file()));
  CHECK_FALSE(run_cached(file(), {.compute_capability = 86}));
  CHECK_FALSE(run_cached(file(), {.compute_capability = 90, .optimise = false}));
  CHECK_FALSE(run_cached(nullptr));
  CHECK(run_cached(file()));
  scratch.damage(200);
  CHECK_FALSE(run_cached(file()));
  CHECK(run_cached(file()));
}

TEST_CASE("invalid code is rejected again despite the cache") {
  const Scratch scratch;
  CompileOptions options;
  options.code_file = std::make_shared<CodeFile>(scratch.open(), kLimit);
  for (int n = 0; n < 2; ++n)
    CHECK(compile_error(".version 8.0\n.target sm_75\n.address_size 64\n.entry k() { frobnicate; }",
                        options) != "");
}
