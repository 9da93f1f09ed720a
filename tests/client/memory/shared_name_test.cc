// Tests the names of memory and events that processes share.
#include "client/memory/shared_name.h"

#include <fcntl.h>
#include <unistd.h>

#include "tests/client/fake_pool.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using gpupool::testing::TemporaryFolder;

namespace {

wire::SharedName name_of(SharedKind kind, uint64_t server = 77) {
  wire::SharedName name{};
  name.magic = wire::kSharedName;
  name.kind = static_cast<uint32_t>(kind);
  name.server = server;
  name.secret.fill(9);
  name.size = 4096;
  return name;
}

CUresult read(const wire::SharedName& name, SharedKind kind, Session** session = nullptr) {
  CUipcMemHandle handle;
  write_name(name, &handle);
  wire::SharedName got{};
  Session* found = nullptr;
  const CUresult result = read_name(&handle, kind, &got, session ? session : &found);
  if (result == CUDA_SUCCESS) CHECK(std::memcmp(&got, &name, sizeof name) == 0);
  return result;
}

}  // namespace

TEST_CASE("shared name: finds the session with the server that it names") {
  connected_worker();
  Session* session = nullptr;
  CHECK(read(name_of(SharedKind::memory), SharedKind::memory, &session) == CUDA_SUCCESS);
  CHECK(session == sessions()[0].get());
}

TEST_CASE("shared name: rejects other kinds and bytes that are no name") {
  connected_worker();
  CHECK(read(name_of(SharedKind::event), SharedKind::memory) == CUDA_ERROR_INVALID_VALUE);
  wire::SharedName wrong = name_of(SharedKind::memory);
  wrong.magic ^= 1;
  CHECK(read(wrong, SharedKind::memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(read(name_of(SharedKind::memory, 0), SharedKind::memory) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("shared name: a server without a session is not supported") {
  connected_worker();
  CHECK(read(name_of(SharedKind::memory, 78), SharedKind::memory) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("shared name: a file has the name and cannot be changed") {
  const wire::SharedName name = name_of(SharedKind::allocation);
  const int file = write_name_file(name);
  REQUIRE(file >= 0);
  wire::SharedName got{};
  CHECK(::lseek(file, 10, SEEK_SET) == 10);  // the offset does not matter
  REQUIRE(read_name_file(file, &got));
  CHECK(std::memcmp(&got, &name, sizeof name) == 0);
  CHECK(::pwrite(file, "x", 1, 0) == -1);
  CHECK(::ftruncate(file, 0) == -1);
  CHECK((::fcntl(file, F_GETFD) & FD_CLOEXEC) != 0);
  ::close(file);
}

TEST_CASE("shared name: a shorter file is no name") {
  const TemporaryFolder folder;
  const int file =
      ::open(folder.write("short", std::string(sizeof(wire::SharedName) - 1, 'x')).c_str(), O_RDONLY);
  REQUIRE(file >= 0);
  wire::SharedName got{};
  CHECK_FALSE(read_name_file(file, &got));
  ::close(file);
  CHECK_FALSE(read_name_file(-1, &got));
}

TEST_CASE("shared name: notes that memory is shared") {
  CHECK_FALSE(memory_is_shared());
  note_shared_memory();
  CHECK(memory_is_shared());
}
