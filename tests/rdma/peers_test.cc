// Tests peers that are killed, limits of registered memory, and kernel objects left behind.
#include <linux/capability.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>

#include "tests/rdma/pair.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;
using namespace gpupool::testing;

namespace {

// Limits the memory that this thread and its children may lock and register, as for an ordinary user. The
// kernel applies the limit only to devices that are opened afterwards, so connections must be made later.
class LockedMemoryLimit {
 public:
  explicit LockedMemoryLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_MEMLOCK, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || !may_lock_anything(false))
      throw std::runtime_error("no limit");
  }
  ~LockedMemoryLimit() {
    may_lock_anything(true);
    ::setrlimit(RLIMIT_MEMLOCK, &before_);
  }

 private:
  static bool may_lock_anything(bool may) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    if (::syscall(SYS_capget, &header, data) != 0) return false;
    const uint32_t bit = 1u << CAP_IPC_LOCK;
    data[0].effective = may ? data[0].effective | bit : data[0].effective & ~bit;
    return ::syscall(SYS_capset, &header, data) == 0;
  }
  rlimit before_{};
};

Upgraded upgrade_over_cable(RdmaOptions::Use use) {
  Options options;
  options.rdma.use = use;
  return upgrade({"rdma", kNear, 0}, options, options);
}

// In a child process.
template <class R>
void exit_unless(const R& result) {
  if (result) return;
  std::fprintf(stderr, "the peer failed: %s\n", result.error().message.c_str());
  ::_exit(1);
}

}  // namespace

TEST_CASE("a reader and a writer and direct transfers detect a killed peer") {
  enum Doing { reads, writes, moves };
  const auto doing = GENERATE(reads, writes, moves);
  INFO("doing " << doing);
  Options options;
  options.rdma.use = RdmaOptions::Use::always;
  options.rdma.timeout_exponent = 17;  // 3.8 s including all retries
  auto listener = listen({"rdma", kNear, 0}, options);
  REQUIRE(listener);
  std::vector<std::byte> memory(4 << 20);
  const pid_t child = ::fork();
  if (child == 0) {
    auto client = connect((*listener)->endpoint(), options);
    exit_unless(client);
    exit_unless((*client)->upgrade(Side::client, in(kLong)));
    const auto region =
        (*client)->direct_memory()->add(memory.data(), memory.size(), DirectMemory::Access::remote);
    exit_unless(region);
    const iovec part{const_cast<uint32_t*>(&region->remote_key), sizeof region->remote_key};
    exit_unless(send_all(**client, {&part, 1}, in(kLong)));
    ::pause();
    ::_exit(0);
  }
  auto server = (*listener)->accept(in(kLong));
  REQUIRE(server);
  REQUIRE((*server)->upgrade(Side::server, in(kLong)));
  DirectMemory::Transfer transfer{
      .local = memory.data(), .bytes = static_cast<uint32_t>(memory.size()), .cookie = 1};
  REQUIRE(receive_exact(**server, std::as_writable_bytes(std::span(&transfer.remote_key, 1)), in(kLong)));
  const auto region =
      (*server)->direct_memory()->add(memory.data(), memory.size(), DirectMemory::Access::local);
  REQUIRE(region);
  transfer.local_key = region->local_key;
  // A forked process has it at the same address.
  transfer.remote = reinterpret_cast<uintptr_t>(memory.data());

  std::thread killer([child] {
    std::this_thread::sleep_for(milliseconds(100));
    ::kill(child, SIGKILL);
  });
  const auto start = Clock::now();
  Result<void> result;
  if (doing == reads) {
    std::byte byte{};
    result = receive_exact(**server, {&byte, 1}, in(kLong));
  } else if (doing == writes) {
    const std::vector<std::byte> much(256 << 20);
    result = send_all_of(**server, much);
  } else {
    while (result && Clock::now() - start < kLong) {
      result = complete(*(*server)->direct_memory(), (*server)->direct_memory()->write(transfer));
    }
  }
  killer.join();
  CHECK(Clock::now() - start < milliseconds(10'000));
  REQUIRE_FALSE(result);
  CHECK_FALSE(result.error().message.empty());
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("below the memlock limit a connection fails or stays with tcp and both ends report why") {
  const rlim_t bytes = GENERATE(as<rlim_t>(), 0, 64 << 10, 1 << 20, 3 << 20);
  INFO("limit " << bytes);
  const LockedMemoryLimit limit(bytes);
  {
    const Upgraded forced = upgrade_over_cable(RdmaOptions::Use::always);
    CHECK(forced.client.ok() == forced.server.ok());
    if (!forced.client) {
      INFO(reasons(forced));
      CHECK(forced.client.error().message.find("no rdma with") != std::string::npos);
      CHECK(reasons(forced).find("ulimit -l") != std::string::npos);
    }
    CHECK((bytes > 1 << 20 || !forced.client));  // limits up to 1 MiB do not suffice
  }
  const Upgraded wished = upgrade_over_cable(RdmaOptions::Use::if_possible);
  REQUIRE(wished.client);
  REQUIRE(wished.server);
  INFO(reasons(wished));
  const bool over_rdma = wished.pair.client->carrier().starts_with("rdma");
  CHECK(wished.pair.server->carrier().starts_with("rdma") == over_rdma);
  if (!over_rdma) {
    CHECK(reasons(wished).find("ulimit -l") != std::string::npos);
    CHECK(wished.pair.client->direct_memory() == nullptr);
  }
  require_talk(wished.pair);
}

TEST_CASE("memory beyond the limit is rejected and the connection continues") {
  const LockedMemoryLimit limit(8 << 20);
  const Pair pair = make_pair_over_cable();
  std::vector<std::byte> memory(8 << 20);
  auto* const direct = pair.client->direct_memory();
  const auto region = direct->add(memory.data(), memory.size(), DirectMemory::Access::remote);
  REQUIRE_FALSE(region);
  CHECK(region.error().code == ErrorCode::limit);
  CHECK(region.error().message.find("ulimit -l") != std::string::npos);
  CHECK(direct->add(memory.data(), 1 << 20, DirectMemory::Access::remote));
  require_talk(pair);
}

TEST_CASE("closed or broken or failed connections leave nothing in the kernel") {
  const auto before = kernel_objects();
  std::vector<std::byte> memory(1 << 20);
  for (int round = 0; round < 3; ++round) {
    const Pair closed = make_pair_over_cable();
    REQUIRE(closed.client->direct_memory()->add(memory.data(), memory.size(), DirectMemory::Access::remote));
    CHECK(kernel_objects() != before);
    closed.client->close();
    const Pair dropped = make_pair_over_cable();  // without close(), with data in flight
    REQUIRE(send_text(*dropped.client, "unread"));
    const LockedMemoryLimit limit(64 << 10);
    CHECK_FALSE(upgrade_over_cable(RdmaOptions::Use::always).client);
  }
  {
    Options options;
    options.rdma.timeout_exponent = 12;
    options.dead_peer_timeout = milliseconds(1000);
    const Pair broken = make_pair_over_cable(options);
    const PulledCable cable;
    CHECK_FALSE(send_all_of(*broken.client, pattern(16 << 20, 1)));
  }
  CHECK(kernel_objects() == before);
}
