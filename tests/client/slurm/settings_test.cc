// Tests of the plugin's arguments in plugstack.conf.
#include "client/slurm/settings.h"

#include <vector>

#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

Result<slurm::Settings> parse(std::vector<std::string> words,
                              const std::string& plugin = "/p/lib/slurm/x.so") {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  return slurm::parse_settings(static_cast<int>(pointers.size()), pointers.data(), plugin);
}

}  // namespace

TEST_CASE("arguments of the plugin are read, and have defaults") {
  const auto none = parse({});
  REQUIRE(none);
  CHECK(none->server.empty());
  CHECK(none->folder == "/run/gpupool-slurm");
  CHECK(none->check);
  CHECK(none->programs == "/p/bin");
  const auto all = parse({"server=pool://a:1,b:2?insecure=1", "token-file=~/token", "folder=/x", "check=no",
                          "gpupool=/opt/gpupool"});
  REQUIRE(all);
  CHECK(all->server == "pool://a:1,b:2?insecure=1");
  CHECK(all->token_file == "~/token");
  CHECK(all->folder == "/x");
  CHECK_FALSE(all->check);
  CHECK(all->programs == "/opt/gpupool/bin");
}

TEST_CASE("a wrong argument of the plugin is refused with its name") {
  for (const char* const word : {"server=tcp://a:1", "server", "token-file=token", "folder=run", "gpupool=.",
                                 "check=maybe", "sever=pool://a"}) {
    const auto settings = parse({word});
    REQUIRE_FALSE(settings);
    CHECK(has(settings.error().message, std::string("'") + word + "'"));
  }
}

TEST_CASE("a symbolic link to the plugin leads to the programs of its installation") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "gpupool/lib/slurm");
  const fs::path plugin = folder.write("gpupool/lib/slurm/spank_gpupool.so", "");
  fs::create_symlink(plugin, folder.path() / "spank_gpupool.so");
  const auto settings = parse({}, folder.path() / "spank_gpupool.so");
  REQUIRE(settings);
  CHECK(fs::path(settings->programs) == fs::canonical(folder.path()) / "gpupool/bin");
}
