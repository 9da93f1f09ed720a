#include "common/admission/per_peer.h"

#include "tests/support/catch.h"

using gpupool::PerPeer;

TEST_CASE("the oldest entry of the peer with most entries is chosen") {
  PerPeer<int> things;
  things.add("a", 1);
  things.add("b", 2);
  const auto third = things.add("b", 3);
  things.add("b", 4);
  things.add("c", 5);
  CHECK(things.size() == 5);
  CHECK(things.oldest_of_busiest_peer("a") == 2);
  CHECK(things.oldest_of_busiest_peer("unknown") == 2);
  things.remove(third);
  CHECK(things.size() == 4);
  CHECK(things.oldest_of_busiest_peer("unknown") == 2);
}

TEST_CASE("the new entry of a peer with entries counts towards its number") {
  PerPeer<int> things;
  things.add("a", 1);
  things.add("b", 2);
  CHECK(things.oldest_of_busiest_peer("b") == 2);
  CHECK(things.oldest_of_busiest_peer("a") == 1);
  CHECK(things.oldest_of_busiest_peer("c") == 1);
}

TEST_CASE(
    "among peers with equally many entries the oldest entry is chosen and peers without entries are "
    "forgotten") {
  PerPeer<int> things;
  const auto first = things.add("z", 1);
  things.add("a", 2);
  things.add("b", 3);
  CHECK(things.oldest_of_busiest_peer("") == 1);
  things.remove(first);
  CHECK(things.oldest_of_busiest_peer("") == 2);
  CHECK(things.oldest_of_busiest_peer("z") == 2);
  things.add("z", 4);
  CHECK(things.oldest_of_busiest_peer("") == 2);
}
