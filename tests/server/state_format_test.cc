// Which programs may take over a state of poold (server/poold/upgrade/successor.h).
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "server/poold/upgrade/successor.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

// What a program that checks this state says.
Result<std::optional<PreviousProgram>> received(const upgrade::State& state) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const std::string bytes = state.SerializeAsString();
  REQUIRE(::write(ends[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  ::close(ends[1]);
  ::setenv("GPUPOOL_POOLD_STATE", (std::to_string(ends[0]) + ":1:check").c_str(), 1);
  return receive_state();
}

upgrade::State state_of(uint32_t format) {
  upgrade::State state;
  state.set_format(format);
  state.set_version("9.9");
  return state;
}

}  // namespace

TEST_CASE("a state of a newer format is refused, an older one is read") {
  for (uint32_t format = 1; format <= kStateFormat; ++format) {
    const auto read = received(state_of(format));
    REQUIRE(read);
    CHECK((*read)->state.format() == format);
    CHECK((*read)->only_check);
  }
  const auto newer = received(state_of(kStateFormat + 1));
  REQUIRE_FALSE(newer);
  CHECK(newer.error().message.find("format " + std::to_string(kStateFormat + 1)) != std::string::npos);
}

TEST_CASE("only a state with suspended sessions needs a program that knows them") {
  upgrade::State state;
  CHECK(format_needed(state) == 1);
  state.mutable_pool()->add_suspended();
  CHECK(format_needed(state) == 2);
}
