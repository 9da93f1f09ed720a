// Runs pool-admin against a test's poold and reads its JSON replies. Included by the tests of this folder.
// Not thread-safe; a reply that is not JSON fails the test.
#pragma once
#include <string>
#include <vector>

#include "tests/e2e/json.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"

namespace gpupool::testing {

// Returns the command line that runs pool-admin with these words on poold's admin socket.
inline std::vector<std::string> admin_words(const PooldProcess& poold, std::vector<std::string> words) {
  words.insert(words.begin(), {program_path("pool-admin"), "--poold", "unix:" + poold.admin_socket()});
  return words;
}

// Runs pool-admin --json.
inline Finished pool_admin(Pool& pool, std::vector<std::string> words) {
  words.insert(words.begin(), "--json");
  return run_patiently(admin_words(pool.poold(), std::move(words)), {});
}

// Returns the JSON object in the output, which may follow messages.
inline Json json_in(const Finished& finished) {
  INFO(finished.output);
  const size_t at = finished.output.find('{');
  REQUIRE(at != std::string::npos);
  return parse_json(finished.output.substr(at));
}

inline Json sessions_of(Pool& pool) {
  return parse_json(pool_admin(pool, {"sessions"}).output);
}

}  // namespace gpupool::testing
