// Tests memory and events of one device that several processes share.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>
#include <vector>

#include "server/softgpu/memory/shared_device.h"
#include "tests/server/softgpu/memory/child.h"
#include "tests/server/softgpu/memory/instance.h"

using namespace gpupool::softgpu;

namespace {

constexpr uint64_t kTotal = 8 * kGranule;

void send_descriptor(int socket, int descriptor) {
  char byte = 'd';
  iovec part{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = space, message.msg_controllen = sizeof space;
  cmsghdr* const control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET, control->cmsg_type = SCM_RIGHTS,
  control->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
  (void)!sendmsg(socket, &message, 0);
}
int receive_descriptor(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = space, message.msg_controllen = sizeof space;
  if (recvmsg(socket, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == nullptr) return -1;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  return descriptor;
}

unsigned char* map(const std::shared_ptr<Memory>& memory) {
  const auto address = allocate_addresses(memory->size(), kGranule, 0);
  if (!address || !map_memory(memory, 0, *address, memory->size())) return nullptr;
  return reinterpret_cast<unsigned char*>(*address);
}
void unmap(unsigned char* at, uint64_t size) {
  CHECK(unmap_memory(reinterpret_cast<uint64_t>(at), size));
  CHECK(free_addresses(reinterpret_cast<uint64_t>(at), size));
}

}  // namespace

TEST_CASE("memory shared by two processes is charged once and freed by the last of them") {
  Instance instance;
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  Child child([&](Child::Side& parent) {  // the exporting process
    auto device = SharedDevice::open(0, kTotal);
    auto memory = device ? device->allocate(3 * kGranule) : nullptr;
    unsigned char* const at = memory ? map(memory) : nullptr;
    if (at == nullptr) return 1;
    at[5] = 42;
    const int descriptor = device->export_memory(memory, 1);
    if (descriptor < 0 || at[5] != 42) return 2;
    send_descriptor(ends[1], descriptor);
    parent.tell('s');
    if (parent.hear() != 'w' || at[5] != 43) return 3;
    at[6] = 44;
    parent.tell('g');
    parent.hear();
    return 0;
  });
  REQUIRE(child.hear() == 's');
  const int descriptor = receive_descriptor(ends[0]);
  const auto label = read_label(descriptor);
  REQUIRE(label);
  CHECK(label->size == 3 * kGranule);
  CHECK(label->handle_types == 1);
  auto device = SharedDevice::open(0, kTotal);
  REQUIRE(device);
  CHECK(device->free_bytes() == kTotal - 3 * kGranule);
  bool refused = false;
  auto memory = device->import_memory(descriptor, &refused),
       again = device->import_memory(descriptor, &refused);
  REQUIRE(memory);
  REQUIRE(again);
  CHECK(device->free_bytes() == kTotal - 3 * kGranule);
  again.reset();
  // Memory of another device.
  CHECK(SharedDevice::open(1, kTotal)->import_memory(descriptor, &refused) == nullptr);
  CHECK_FALSE(refused);
  unsigned char* const at = map(memory);
  REQUIRE(at);
  CHECK(at[5] == 42);
  at[5] = 43;
  child.tell('w');
  REQUIRE(child.hear() == 'g');
  child.kill_now();
  CHECK(at[6] == 44);
  CHECK(device->free_bytes() == kTotal - 3 * kGranule);
  CHECK_FALSE(device->allocate(6 * kGranule));
  unmap(at, 3 * kGranule);
  memory.reset();
  CHECK(device->free_bytes() == kTotal);
  // No process has the memory, but its file still exists: an import charges it anew if there is room.
  auto most = device->allocate(6 * kGranule);
  CHECK(device->import_memory(descriptor, &refused) == nullptr);
  CHECK(refused);
  most.reset();
  CHECK(device->import_memory(descriptor, &refused) != nullptr);
  for (const int end : {ends[0], ends[1], descriptor}) close(end);
}

TEST_CASE("import_memory rejects files that are not exported memory") {
  Instance instance;
  auto device = SharedDevice::open(0, kTotal);
  auto memory = device->allocate(kGranule);
  const int good = device->export_memory(memory, 0);
  REQUIRE(good >= 0);
  CHECK(ftruncate(good, 0) != 0);  // sealed: its pages cannot be taken away
  const auto label = *read_label(good);
  bool refused = false;
  const auto is_memory = [&](uint64_t size, const MemoryLabel& said, int seals) {
    const int file = memfd_create("not", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    REQUIRE(ftruncate(file, static_cast<off_t>(size + page_bytes())) == 0);
    REQUIRE(pwrite(file, &said, sizeof said, static_cast<off_t>(size)) == sizeof said);
    REQUIRE(fcntl(file, F_ADD_SEALS, seals) == 0);
    const bool is = device->import_memory(file, &refused) != nullptr;
    close(file);
    return is;
  };
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  CHECK(is_memory(kGranule, label, kSeals));
  CHECK_FALSE(is_memory(kGranule, label, F_SEAL_GROW));
  CHECK_FALSE(is_memory(kGranule / 2, label, kSeals));
  auto wrong = label;
  wrong.magic = 0;
  CHECK_FALSE(is_memory(kGranule, wrong, kSeals));
  wrong = label;
  wrong.size = UINT64_MAX;
  CHECK_FALSE(is_memory(kGranule, wrong, kSeals));
  CHECK_FALSE(read_label(-1));
  close(good);
}

TEST_CASE("processes wait for each other's event records but not for those of dead processes") {
  Instance instance;
  auto device = SharedDevice::open(0, kTotal);
  auto event = device->make_event();
  REQUIRE(event);
  CHECK(event->latest() == 0);
  CHECK(event->passed(0));
  const SharedEventName name = event->name();
  Child child([&](Child::Side& parent) {
    if (parent.hear() != 'b') return 1;
    auto mine = SharedDevice::open(0, kTotal);
    SharedEventName other = name;
    other.id[0] ^= 1;
    if (mine->open_event(other)) return 1;
    auto shared = mine->open_event(name);
    if (!shared || shared->latest() != 1 || shared->passed(1)) return 2;
    parent.tell('o');
    if (parent.hear() != 'c' || !shared->passed(1)) return 3;
    if (shared->record() != 2) return 4;
    parent.tell('r');
    parent.hear();
    return 0;
  });
  CHECK(event->record() == 1);
  child.tell('b');
  REQUIRE(child.hear() == 'o');
  event->completed(1);
  child.tell('c');
  REQUIRE(child.hear() == 'r');
  CHECK(event->latest() == 2);
  CHECK(event->passed(1));
  CHECK_FALSE(event->passed(2));
  child.kill_now();
  CHECK(event->passed(2));
  // A later record does not complete an earlier one.
  CHECK(event->record() == 3);
  CHECK(event->record() == 4);
  event->completed(4);
  CHECK_FALSE(event->passed(3));
  CHECK(event->passed(4));
  event.reset();
  CHECK(device->free_bytes() == kTotal);  // querying releases the dead process's share
  CHECK(device->open_event(name) == nullptr);
}

TEST_CASE("a live process's record is never mistaken for a dead process's") {
  constexpr int kRounds = 40, kEvents = 64, kRecords = SharedEvents::kTrackedRecords;
  Instance instance;
  auto device = SharedDevice::open(0, kTotal);
  std::vector<std::shared_ptr<SharedEvent>> events;
  for (int i = 0; i < kEvents; ++i) events.push_back(device->make_event());
  const auto open_all = [&] {
    auto mine = SharedDevice::open(0, kTotal);
    std::vector<std::shared_ptr<SharedEvent>> opened;
    for (const auto& event : events) opened.push_back(mine->open_event(event->name()));
    return opened;
  };
  const auto record_all = [](const auto& opened) {
    for (const auto& event : opened) {
      for (int i = 0; i < kRecords; ++i) event->record();
    }
  };
  Child living([&](Child::Side& parent) {
    const auto opened = open_all();
    while (parent.hear() == 'r') {
      record_all(opened);
      parent.tell('d');
    }
    return 0;
  });
  for (int round = 0; round < kRounds; ++round) {
    Child dead([&](Child::Side& parent) {
      record_all(open_all());
      parent.tell('d');
      parent.hear();
      return 0;
    });
    REQUIRE(dead.hear() == 'd');
    dead.kill_now();
    std::vector<uint64_t> before;
    for (const auto& event : events) before.push_back(event->latest());
    living.tell('r');
    while (events[static_cast<size_t>(round)]->latest() == before[static_cast<size_t>(round)])
      std::this_thread::yield();
    living.stop();
    for (size_t i = 0; i < events.size(); ++i) {
      const uint64_t latest = events[i]->latest();
      CHECK(events[i]->passed(latest) == (latest == before[i]));
    }
    living.signal(SIGCONT);
    REQUIRE(living.hear() == 'd');
  }
}

TEST_CASE("a process that reuses a dead process's slot does not inherit its records") {
  Instance instance;
  auto device = SharedDevice::open(0, kTotal);
  const auto event = device->make_event();
  const auto opened = [&] { return SharedDevice::open(0, kTotal)->open_event(event->name()); };
  {
    Child dead([&](Child::Side& parent) {
      const auto mine = opened();
      parent.tell(mine->record() == 1 ? 'd' : 'x');
      parent.hear();
      return 0;
    });
    REQUIRE(dead.hear() == 'd');
    CHECK_FALSE(event->passed(1));
  }
  Child next([&](Child::Side&) { return opened()->passed(1) ? 0 : 1; });
  CHECK(next.wait() == 0);
  CHECK(event->passed(1));
}
