// Module images are uploaded to a server once: counts uploads and bytes between client and poold.
#include <filesystem>

#include "tests/e2e/pool.h"
#include "tests/e2e/shared_pool.h"
#include "tests/support/catch.h"
#include "tests/support/proxy.h"

using namespace gpupool::testing;

namespace {

struct Traffic {
  int status = 0;
  uint64_t uploads = 0;
  uint64_t bytes = 0;
  uint64_t round_trips = 0;
};

Traffic traffic_of(Pool& pool, const std::vector<std::string>& scenario,
                   uint64_t cut_after_upwards = Proxy::kNever) {
  Proxy proxy(pool.poold().endpoint(), Proxy::kNever, cut_after_upwards);
  std::vector<std::string> words{driver_app()};
  words.insert(words.end(), scenario.begin(), scenario.end());
  Environment environment{{"GPUPOOL", proxy.url()}};
  // After a cut the proxy neither answers nor refuses the client that returns.
  if (cut_after_upwards != Proxy::kNever) environment["GPUPOOL_CONNECT_TIMEOUT_MS"] = "5000";
  const Finished app = run_patiently(words, pool.through(environment));
  INFO(app.output);
  if (cut_after_upwards == Proxy::kNever) CHECK(app.status == 0);
  return {app.status, proxy.uploads(), proxy.from_client(), proxy.round_trips()};
}

constexpr uint64_t kBig = 3 << 20;
const std::vector<std::string> kLoadBig = {"load_big", std::to_string(kBig)};

// True if softgpu compiled the program's only kernel, false if it loaded the code from its cache, according
// to softgpu's log (SOFTGPU_LOG=1).
bool compiles(const Environment& environment) {
  const Finished app = run_patiently({driver_app(), "load_in_contexts", "1"}, environment);
  INFO(app.output);
  CHECK(app.status == 0);
  const auto said = lines_with(app.output, "softgpu: kernel add ");
  REQUIRE(said.size() == 1);
  const bool compiled = said.front().find(" compiled in ") != std::string::npos;
  CHECK(compiled != (said.front().find(" loaded from the cache in ") != std::string::npos));
  return compiled;
}

}  // namespace

TEST_CASE("the second process of a program uploads nothing") {
  Pool pool({}, {"--log-level", "debug"});
  const Traffic first = traffic_of(pool, kLoadBig);
  CHECK(first.uploads >= 3);
  CHECK(first.bytes > kBig);
  const Traffic second = traffic_of(pool, kLoadBig);
  CHECK(second.uploads == 0);
  CHECK(second.bytes < 4096);
  CHECK(second.round_trips == first.round_trips - 1);  // the load's first reply contains its result
  CHECK(pool.poold().await_log("image_cache_miss"));
  CHECK(pool.poold().await_log("image_cache_hit"));
}

TEST_CASE("code of a fat binary that no GPU of the server can run does not travel") {
  Pool pool, newer(Environment{{"SOFTGPU_COMPUTE_CAPABILITY", "12.0"}}),
      without({}, {"--image-cache-mib", "0"});
  const std::vector<std::string> load_fat = {"load_fat", std::to_string(kBig)};
  const Traffic needed = traffic_of(pool, load_fat);
  CHECK(needed.uploads == 1);  // the module's and the library's image is the same
  CHECK(needed.bytes < 64 * 1024);
  CHECK(traffic_of(newer, load_fat).bytes > kBig / 2);  // its GPU can run the large PTX, too
  CHECK(traffic_of(without, load_fat).uploads == 2);
}

TEST_CASE("a session uses what softgpu compiled for its tenant and for no other") {
  SharedPool pool({"", ""}, {{"SOFTGPU_LOG", "1"}});
  // softgpu logs to the program's standard error.
  const auto first_word = [&](size_t tenant) {
    const auto app = pool.start(tenant, {"reset_and_use_again"});
    CHECK(app->wait(kLongPatience) == 0);
    app->await_end_of_output();
    INFO(app->output());
    const auto said = lines_with(app->output(), "softgpu: kernel ");
    REQUIRE(!said.empty());
    return said.front();
  };
  CHECK(first_word(1).find(" compiled in ") != std::string::npos);
  CHECK(first_word(1).find(" loaded from the cache in ") != std::string::npos);
  CHECK(first_word(2).find(" compiled in ") != std::string::npos);
}

TEST_CASE("a program compiles nothing that an earlier process of its user compiled") {
  const TemporaryFolder folder;
  const std::filesystem::path cache = folder.path() / "cache";
  const Environment softgpu{{"SOFTGPU_LOG", "1"}, {"SOFTGPU_CACHE", cache.string()}};
  Pool pool(softgpu), without(softgpu, {"--code-cache-mib", "0"});
  CHECK(compiles(pool.through()));
  CHECK_FALSE(compiles(pool.through()));
  for (int run = 0; run < 2; ++run) CHECK(compiles(without.through()));
  CHECK(!std::filesystem::exists(cache));  // poold's workers serve several tenants and never use a cache
                                           // folder
  CHECK(compiles(pool.directly()));
  CHECK_FALSE(compiles(pool.directly()));
  for (int run = 0; run < 2; ++run) CHECK(compiles(pool.directly({{"SOFTGPU_CACHE", "off"}})));
}

TEST_CASE("several contexts of a process share one upload") {
  Pool pool;
  CHECK(traffic_of(pool, {"load_in_contexts", "3"}).uploads == 1);
  CHECK(traffic_of(pool, {"load_in_contexts", "3"}).uploads == 0);
}

TEST_CASE("without an image cache every load uploads and no load waits twice") {
  Pool with;
  Pool without({}, {"--image-cache-mib", "0"});
  traffic_of(with, {"load_in_contexts", "2"});
  const Traffic cached = traffic_of(with, {"load_in_contexts", "2"});
  const Traffic uncached = traffic_of(without, {"load_in_contexts", "2"});
  CHECK(uncached.uploads == 2);
  CHECK(uncached.round_trips == cached.round_trips);
}

TEST_CASE("an image larger than the cache is uploaded at once each time") {
  Pool pool({}, {"--image-cache-mib", "1"});
  const Traffic first = traffic_of(pool, kLoadBig);
  const Traffic second = traffic_of(pool, kLoadBig);
  CHECK(second.uploads == first.uploads);
  CHECK(second.round_trips == first.round_trips);
}

TEST_CASE("images that do not fit together take turns in the cache") {
  Pool pool({}, {"--image-cache-mib", "5"});
  const std::vector<std::string> other = {"load_big", std::to_string(kBig + 100'000)};
  CHECK(traffic_of(pool, kLoadBig).uploads > 0);
  CHECK(traffic_of(pool, other).uploads > 0);
  CHECK(traffic_of(pool, other).uploads == 0);
  CHECK(traffic_of(pool, kLoadBig).uploads > 0);
  CHECK(pool.poold().await_log("image_cache_evicted"));
}

TEST_CASE("an upload that is cut off half way leaves nothing behind") {
  Pool pool({}, {"--resume-timeout", "1"});
  const Traffic cut = traffic_of(pool, kLoadBig, kBig / 2);
  CHECK(cut.status == 1);
  CHECK(cut.uploads > 0);
  CHECK(traffic_of(pool, kLoadBig).uploads >= 3);
  CHECK(traffic_of(pool, kLoadBig).uploads == 0);
}

TEST_CASE("an image that the device refuses is refused each time") {
  Pool pool;
  traffic_of(pool, {"load_broken"});
  traffic_of(pool, {"load_broken"});
}
