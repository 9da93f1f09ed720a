// Large copies over a slow link: compressed only where that saves time.
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/slow_link.h"

using namespace gpupool::testing;

namespace {

// The connections that compress may still be opening in the first of the three rounds.
constexpr uint64_t kRound = 24 << 20;
constexpr uint64_t kBytes = 3 * kRound;

struct Traffic {
  uint64_t up = 0;
  uint64_t down = 0;
};

Traffic traffic_of(const std::string& data, const std::string& compression, double bytes_per_second) {
  Pool pool;
  SlowLink link(pool.poold().endpoint(), {.bytes_per_second = bytes_per_second});
  const Finished app =
      run_patiently({driver_app(), "bandwidth", std::to_string(kRound), data, "3"},
                    pool.through({{"GPUPOOL", link.url()}, {"GPUPOOL_COMPRESSION", compression}}));
  INFO(app.output);
  CHECK(app.status == 0);
  return {link.bytes_up(), link.bytes_down()};
}

}  // namespace

TEST_CASE("on a slow link what shrinks is compressed both ways") {
  const Traffic traffic = traffic_of("text", "auto", 40e6);
  CHECK(traffic.up < kBytes * 3 / 4);
  CHECK(traffic.down < kBytes * 3 / 4);
}

TEST_CASE("on a slow link what does not shrink travels as it is") {
  const Traffic traffic = traffic_of("random", "auto", 60e6);
  CHECK(traffic.up > kBytes);
  CHECK(traffic.down > kBytes);
}

TEST_CASE("compression can be forbidden and forced") {
  const Traffic off = traffic_of("text", "off", 200e6);
  CHECK(off.up > kBytes);
  CHECK(off.down > kBytes);
  const Traffic always = traffic_of("text", "always", 0);
  CHECK(always.up < kBytes * 3 / 4);
  CHECK(always.down < kBytes * 3 / 4);
}
