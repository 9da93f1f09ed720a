// Tests of the command line.
#include "client/kubernetes/options.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace gpupool::kubernetes;

namespace {

// Returns the options of a command with an address of the pool and of the API server.
Options parsed(std::vector<std::string> words) {
  words.insert(words.begin(), "gpupool-kubernetes");
  words.insert(words.end(), {"--server", "pool://host", "--api-server", "http://127.0.0.1:1"});
  std::vector<char*> texts;
  for (std::string& word : words) texts.push_back(word.data());
  const auto read = parse_options(static_cast<int>(texts.size()), texts.data());
  REQUIRE(std::holds_alternative<Options>(read));
  return std::get<Options>(read);
}

}  // namespace

TEST_CASE("the node's state is in no folder of another program") {
  const Options options = parsed({"node", "--node-name", "n"});
  CHECK(options.node);
  CHECK(options.state_folder == "/var/lib/gpupool-kubernetes");
}

TEST_CASE("the API server is asked for all claims less often than the scheduler for its GPUs") {
  const Options options = parsed({"controller"});
  CHECK(options.interval == 2);
  CHECK(options.claims_interval == 15);
}
