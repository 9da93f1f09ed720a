// Tests when a link's pieces are compressed: the governor with simulated links and processors.
#include "protocol/compression/governor.h"

#include "tests/support/catch.h"

using namespace gpupool::compression;

namespace {

constexpr size_t kPiece = 1 << 20;

// A link and a compressor of given speeds (bytes per second), and data of a given compression ratio.
struct World {
  double link = 100e6;
  double compressor = 500e6;
  double ratio = 0.4;

  // Sends one piece and returns the time that it took, in seconds.
  double send(Governor& governor) {
    const auto next = governor.next();
    double took = 0;
    if (next == Governor::Next::plain_with_sample) {
      took = static_cast<double>(kSampleBytes) / compressor;
      governor.sampled(kSampleBytes, static_cast<size_t>(ratio * kSampleBytes), Governor::Duration(took));
      ++samples;
    }
    const bool packed = next == Governor::Next::compressed;
    const double packing = packed ? kPiece / compressor : 0;
    const double wire = kPiece * (packed ? ratio : 1) / link;
    // The socket buffer keeps the link busy while the thread compresses.
    const double whole = std::max(packing, wire);
    const double copying = kPiece * (packed ? ratio : 1) / 3e9;
    const double blocked = std::max(0.0, whole - packing - copying);
    took += whole;
    if (packed) {
      governor.sent_compressed(kPiece, static_cast<size_t>(ratio * kPiece), Governor::Duration(whole),
                               Governor::Duration(blocked));
      ++compressed;
    } else {
      governor.sent_plain(kPiece, Governor::Duration(took), Governor::Duration(blocked));
    }
    return took;
  }
  double send(Governor& governor, int pieces) {
    double took = 0;
    for (int i = 0; i < pieces; ++i) took += send(governor);
    return took;
  }
  double plain(int pieces) const { return pieces * double{kPiece} / link; }
  int samples = 0;
  int compressed = 0;
};

}  // namespace

TEST_CASE("compresses everything on a slow link if data is compressible") {
  World world;
  Governor governor(Policy::automatic);
  const double took = world.send(governor, 200);
  CHECK(world.compressed > 180);
  CHECK(took < 0.5 * world.plain(200));
}

TEST_CASE("leaves incompressible data alone at almost no cost") {
  World world;
  world.ratio = 1.0;
  Governor governor(Policy::automatic);
  const double took = world.send(governor, 2000);
  CHECK(world.compressed == 0);
  CHECK(took < 1.005 * world.plain(2000));
}

TEST_CASE("does not compress on a fast link") {
  World world;
  world.link = 2e9;
  Governor governor(Policy::automatic);
  world.send(governor, 500);
  CHECK(world.samples == 0);
  CHECK(world.compressed == 0);
}

TEST_CASE("a compressor that is no faster than the link is not used") {
  World world;
  world.compressor = 110e6;
  Governor governor(Policy::automatic);
  const double took = world.send(governor, 1000);
  CHECK(world.compressed == 0);
  CHECK(took < 1.01 * world.plain(1000));
}

TEST_CASE("stops compressing at incompressible pieces and resumes at compressible ones") {
  World world;
  Governor governor(Policy::automatic);
  world.send(governor, 50);
  REQUIRE(governor.next() == Governor::Next::compressed);
  world.ratio = 1.0;
  world.send(governor);
  CHECK(governor.next() != Governor::Next::compressed);
  world.ratio = 0.4;
  world.send(governor, 50);
  CHECK(governor.next() == Governor::Next::compressed);
}

TEST_CASE("stops compressing when the link has become fast") {
  World world;
  Governor governor(Policy::automatic);
  world.send(governor, 50);
  REQUIRE(governor.next() == Governor::Next::compressed);
  world.link = 2e9;
  world.send(governor, 100);
  world.compressed = 0;
  world.send(governor, 200);
  CHECK(world.compressed == 0);
}

TEST_CASE("stops compressing when other work takes the processor") {
  World world;
  Governor governor(Policy::automatic);
  world.send(governor, 50);
  REQUIRE(governor.next() == Governor::Next::compressed);
  world.compressor = 50e6;
  world.send(governor, 10);
  CHECK(governor.next() != Governor::Next::compressed);
  const double took = world.send(governor, 2000);
  CHECK(took < 1.02 * world.plain(2000));
}

TEST_CASE("the policies off and always compress nothing and everything") {
  World world;
  Governor off(Policy::off);
  world.send(off, 100);
  CHECK(world.compressed == 0);
  Governor always(Policy::always);
  world.send(always, 100);
  CHECK(world.compressed == 100);
  CHECK(parse_policy("auto") == Policy::automatic);
  CHECK(parse_policy("off") == Policy::off);
  CHECK(parse_policy("always") == Policy::always);
  CHECK_FALSE(parse_policy("perhaps"));
}
