// Tests exports to and imports from other sessions. The test acts as poold, which is honest, and as the other
// worker, which may be malicious.
#include "server/worker/sharing/exported_handles.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "protocol/wire/sharing.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using server::ControlKind;
using server::packet::ShareFound;
using server::packet::ShareMissing;
using server::packet::ShareWanted;

namespace {

int exported = 0;  // number of descriptors requested from the driver
CUresult export_memory(void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                       unsigned long long) {
  ++exported;
  const int file = ::memfd_create("memory", MFD_CLOEXEC);
  (void)!::pwrite(file, &handle, sizeof handle, 0);
  *static_cast<int*>(shareable) = file;
  return CUDA_SUCCESS;
}

struct Side {
  Side() {
    api.cuMemExportToShareableHandle = &export_memory;
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  }
  ~Side() {
    handles.reset();
    control.reset();
    for (const int end : ends) ::close(end);
  }
  void start(uint64_t session, std::chrono::milliseconds patience = std::chrono::seconds(10)) {
    control = std::make_unique<Control>(ends[1], nullptr);
    handles = std::make_unique<ExportedHandles>(api, control.get(), 5, session, patience);
  }
  server::ControlMessage receive() {
    const timeval patience{10, 0};
    ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    auto message = server::receive_control(ends[0]);
    REQUIRE(message);
    return *message;
  }
  // Closes the descriptor.
  template <ControlKind kind>
  void send(const server::ControlBody<kind>& body, int descriptor = -1) {
    REQUIRE(server::send_control<kind>(ends[0], body, "", descriptor));
    if (descriptor >= 0) ::close(descriptor);
  }
  DeviceApi api;
  int ends[2];
  std::unique_ptr<Control> control;
  std::unique_ptr<ExportedHandles> handles;
};

// The socket pair that poold creates for each request: ends for the owner's worker and for the requester.
struct Pair {
  Pair() { REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0); }
  int ends[2];
};

const ExportedHandles::Memory kMemory{17, 4096, 2, 8, 99};

}  // namespace

TEST_CASE("suspends unfetched memory and resumes it with a new handle under the same name") {
  Side owner;
  owner.start(1);
  wire::SharedName name{}, other{}, after{};
  constexpr ExportedHandles::Memory kOther{18, 4096, 2, 8, 100};
  REQUIRE(owner.handles->export_handle(kMemory, &name) == CUDA_SUCCESS);
  REQUIRE(owner.handles->export_handle(kOther, &other) == CUDA_SUCCESS);
  auto held = owner.handles->suspend(17), held_too = owner.handles->suspend(18),
       not_offered = owner.handles->suspend(19);
  REQUIRE((held && held_too && not_offered));
  CHECK_FALSE(*not_offered);
  ExportedHandles::Fetched none;
  CHECK(owner.handles->fetch(name, &none) == CUDA_ERROR_INVALID_VALUE);
  // The driver reuses the other allocation's handle for the first one.
  owner.handles->resume(std::move(*held), 18);
  owner.handles->resume(std::move(*held_too), 20);
  owner.handles->resume(std::move(*not_offered), 21);
  for (const auto& [asked, expected] : {std::pair(name, 18u), {other, 20u}}) {
    ExportedHandles::Fetched fetched;
    REQUIRE(owner.handles->fetch(asked, &fetched) == CUDA_SUCCESS);
    CUmemGenericAllocationHandle handle = 0;
    CHECK(::pread(fetched.descriptor, &handle, sizeof handle, 0) == sizeof handle);
    CHECK(handle == expected);
  }
  CHECK(owner.handles->export_handle({18, 4096, 2, 8, 99}, &after) == CUDA_SUCCESS);
  CHECK(std::memcmp(&name, &after, sizeof name) == 0);
  CHECK_FALSE(owner.handles->suspend(18));  // already fetched
  CHECK(owner.handles->withdraw(CUmemGenericAllocationHandle{18}));
  CHECK_FALSE(owner.handles->withdraw(CUmemGenericAllocationHandle{18}));
}

TEST_CASE("another session fetches a shared object through poold until it is withdrawn") {
  Side owner, taker;
  owner.start(1);
  taker.start(2);
  wire::SharedName name{}, again{};
  REQUIRE(owner.handles->export_handle(kMemory, &name) == CUDA_SUCCESS);
  REQUIRE(owner.handles->export_handle(kMemory, &again) == CUDA_SUCCESS);
  CHECK(std::memcmp(&name, &again, sizeof name) == 0);
  CHECK(name.magic == wire::kSharedName);
  CHECK(name.server == 5);
  CHECK(name.session == 1);
  const auto fetch = [&](ExportedHandles::Fetched* to) {
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread thread([&] { result = taker.handles->fetch(name, to); });
    const auto asked = taker.receive();
    REQUIRE(asked.kind == ControlKind::share_wanted);
    auto wanted = asked.body<ShareWanted>();
    CHECK(wanted.session == 1);
    wanted.requester = 2;
    const Pair pair;
    owner.send<ControlKind::share_wanted>(wanted, pair.ends[1]);
    const auto answer = owner.receive();
    CHECK(answer.descriptor == -1);  // poold accepts none
    if (answer.kind == ControlKind::share_found) {
      const auto found = answer.body<ShareFound>();
      CHECK(found.requester == 2);
      CHECK(found.is_memory == 1);
      taker.send<ControlKind::share_found>(found, pair.ends[0]);
    } else {
      REQUIRE(answer.kind == ControlKind::share_missing);
      const auto missing = answer.body<ShareMissing>();
      CHECK(missing.requester == 2);
      ::close(pair.ends[0]);
      taker.send<ControlKind::share_missing>(missing);
    }
    thread.join();
    return result;
  };
  ExportedHandles::Fetched fetched;
  REQUIRE(fetch(&fetched) == CUDA_SUCCESS);
  REQUIRE(fetched.memory);
  CHECK_FALSE(fetched.own);
  CHECK(fetched.memory->size == 4096);
  CHECK(fetched.memory->device == 2);
  CHECK(fetched.memory->handle_types == 8);
  CHECK(fetched.memory->charge == 99);
  CUmemGenericAllocationHandle handle = 0;
  CHECK(::pread(fetched.descriptor, &handle, sizeof handle, 0) == sizeof handle);
  CHECK(handle == 17);
  owner.handles->withdraw(CUmemGenericAllocationHandle{17});
  ExportedHandles::Fetched none;
  CHECK(fetch(&none) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(none.memory);
  REQUIRE(owner.handles->export_handle(kMemory, &again) == CUDA_SUCCESS);
  CHECK(again.secret != name.secret);  // a new export has a new name
  CHECK(fetch(&none) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("fetches the session's own objects without poold and rejects unknown secrets") {
  Side side;
  side.start(1);
  wire::SharedName name{};
  ExportedHandles::Event event{reinterpret_cast<CUevent>(0x100), nullptr, {}};
  event.handle.reserved[3] = 7;
  REQUIRE(side.handles->export_handle(event, &name) == CUDA_SUCCESS);
  ExportedHandles::Fetched fetched;
  REQUIRE(side.handles->fetch(name, &fetched) == CUDA_SUCCESS);
  CHECK(fetched.own);
  REQUIRE(fetched.event);
  CHECK(fetched.event->reserved[3] == 7);
  const int before = exported;
  for (size_t byte = 0; byte < name.secret.size(); ++byte) {
    auto wrong = name;
    wrong.secret[byte] ^= 0x10;
    ExportedHandles::Fetched none;
    CHECK(side.handles->fetch(wrong, &none) == CUDA_ERROR_INVALID_VALUE);
  }
  auto wrong = name;
  wrong.server = 6;
  CHECK(side.handles->fetch(wrong, &fetched) == CUDA_ERROR_INVALID_VALUE);
  wrong = name;
  wrong.magic = 0;
  CHECK(side.handles->fetch(wrong, &fetched) == CUDA_ERROR_INVALID_VALUE);
  CHECK(exported == before);
  side.handles->withdraw(event.event);
  CHECK(side.handles->fetch(name, &fetched) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("gives up a fetch without a matching answer") {
  Side taker;
  taker.start(2, std::chrono::milliseconds(100));
  const wire::SharedName name{.magic = wire::kSharedName, .server = 5, .session = 1};
  ExportedHandles::Fetched none;
  CHECK(taker.handles->fetch(name, &none) == CUDA_ERROR_MAP_FAILED);
  // A late answer and an unrequested one: both are closed and dropped.
  const auto wanted = taker.receive();
  REQUIRE(wanted.kind == ControlKind::share_wanted);
  taker.send<ControlKind::share_found>({.request = wanted.body<ShareWanted>().request},
                                       ::memfd_create("late", MFD_CLOEXEC));
  CHECK(taker.handles->fetch(name, &none) == CUDA_ERROR_MAP_FAILED);
  CHECK_FALSE(none.memory);
}

TEST_CASE("rejects an inconsistent answer of another worker") {
  enum class Sends { no_socket, nothing, memory_without_size, memory_called_event, no_message };
  const auto sends = GENERATE(Sends::no_socket, Sends::nothing, Sends::memory_without_size,
                              Sends::memory_called_event, Sends::no_message);
  Side taker;
  taker.start(2);
  const wire::SharedName name{.magic = wire::kSharedName, .server = 5, .session = 1};
  ExportedHandles::Fetched none;
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::jthread thread([&] { result = taker.handles->fetch(name, &none); });
  const auto asked = taker.receive();
  REQUIRE(asked.kind == ControlKind::share_wanted);
  const ShareFound found{.request = asked.body<ShareWanted>().request,
                         .is_memory = sends != Sends::memory_called_event};
  const Pair pair;
  const int socket = sends == Sends::no_socket ? ::memfd_create("none", MFD_CLOEXEC) : pair.ends[0];
  const int memory = ::memfd_create("empty", MFD_CLOEXEC);
  if (sends == Sends::memory_without_size || sends == Sends::memory_called_event) {
    REQUIRE(server::send_control<ControlKind::share_found>(pair.ends[1], {}, "", memory));
  }
  if (sends == Sends::no_message) REQUIRE(::send(pair.ends[1], "?", 1, 0) == 1);
  if (sends == Sends::no_socket) ::close(pair.ends[0]);
  taker.send<ControlKind::share_found>(found, socket);
  ::close(memory);
  ::close(pair.ends[1]);
  thread.join();
  CHECK(result == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(none.memory);
}
