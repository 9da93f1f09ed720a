// Tests the listener of shared memory in a process that has no more descriptors.
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "protocol/transport/shm/address.h"
#include "tests/protocol/transport/contract.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;

TEST_CASE("a connection stays in the queue while there is one descriptor instead of the two that it needs") {
  const auto listener = listen(unused_name(), {});
  REQUIRE(listener);
  const auto address = shm::make_address((*listener)->endpoint());
  REQUIRE(address);
  const int client = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(::connect(client, address->get(), address->size) == 0);
  REQUIRE(::send(client, "hello", 5, 0) == 5);

  rlimit before{}, few{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  few = before;
  few.rlim_cur = std::min<rlim_t>(before.rlim_cur, 64);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<int> fillers;
  for (int filler = 0; (filler = ::dup(client)) >= 0;) fillers.push_back(filler);
  ::close(fillers.back());
  fillers.pop_back();
  const auto refused = (*listener)->accept(Clock::now());
  for (const int filler : fillers) ::close(filler);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);

  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::unavailable);
  CHECK((*listener)->accept(Clock::now()));
  ::close(client);
}
