// Several servers in one program: consecutive device numbers, work across servers, and independent failures.
#include <signal.h>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/slow_link.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const Environment kOneDevice{{"SOFTGPU_MEMORY", "128MiB"}};
const Environment kTwoDevices{{"SOFTGPU_MEMORY", "128MiB"}, {"SOFTGPU_DEVICES", "2"}};
const std::vector<std::string> kPeers{"--peers", "127.0.0.0/8"};

std::string both(const Pool& one, const Pool& other) {
  return const_cast<Pool&>(one).poold().url() + "," + const_cast<Pool&>(other).poold().url();
}

// With a bandwidth limit, data stays in flight for a while and commands overtake it.
const SlowLink::Quality kSlow{.bytes_per_second = 100e6, .first_unlimited = true};

// Runs the scenario directly on a softgpu with two devices, through one poold, and through two; all outputs
// must be equal.
void passes_everywhere(const std::string& scenario, const Environment& environment = {}) {
  Pool both_devices(kTwoDevices), first(kOneDevice, kPeers), second(kOneDevice, kPeers);
  const std::vector<std::string> words{driver_app(), scenario};
  const Finished direct = run_patiently(words, both_devices.directly(environment));
  INFO("directly: " << direct.output);
  CHECK(direct.status == 0);
  const Finished one = run_patiently(words, both_devices.through(environment));
  INFO("through one poold: " << one.output);
  CHECK(one.status == 0);
  CHECK(one.output == direct.output);
  Environment several = environment;
  several["GPUPOOL"] = both(first, second);
  const Finished two = run_patiently(words, first.through(several));
  INFO("through two poolds: " << two.output);
  CHECK(two.status == 0);
  CHECK(two.output == direct.output);
}

}  // namespace

#define PASSES(scenario)          \
  TEST_CASE(#scenario) {          \
    passes_everywhere(#scenario); \
  }

PASSES(devices_numbered_through)
PASSES(kernels_on_two_devices)
PASSES(what_belongs_to_another_device)
PASSES(copies_between_devices)
PASSES(boxes_between_devices)
PASSES(a_chain_over_two_devices)
PASSES(host_functions_between_devices)
PASSES(events_between_devices)
PASSES(a_library_on_two_devices)
PASSES(threads_on_two_devices)
PASSES(finished_events_behind_a_host_function)
PASSES(copies_to_another_device_behind_the_legacy_stream)
PASSES(copies_between_devices_in_the_legacy_stream)
PASSES(synchronous_copies_between_devices)

TEST_CASE("two servers while every call waits") {
  for (const char* scenario : {"copies_between_devices", "a_chain_over_two_devices"}) {
    passes_everywhere(scenario, {{"GPUPOOL_SYNC", "1"}});
  }
}

TEST_CASE("copies between servers come behind data that is on its way") {
  Pool first(kOneDevice, kPeers), second(kOneDevice, kPeers);
  SlowLink one(first.poold().endpoint(), kSlow), other(second.poold().endpoint(), kSlow);
  for (const char* sync : {"0", "1"}) {
    const Finished app =
        run_patiently({driver_app(), "copies_behind_new_data"},
                      first.through({{"GPUPOOL", one.url() + "," + other.url()}, {"GPUPOOL_SYNC", sync}}));
    INFO("GPUPOOL_SYNC=" << sync << ": " << app.output);
    CHECK(app.status == 0);
  }
}

TEST_CASE("the devices of several servers are chosen among") {
  Pool first(kTwoDevices), second(kTwoDevices);
  const auto list = [&](const std::string& servers, const char* visible) {
    Environment environment{{"GPUPOOL", servers}};
    if (visible) environment["CUDA_VISIBLE_DEVICES"] = visible;
    const Finished app = run_to_end({driver_app(), "list_devices"}, first.through(environment));
    INFO(app.output);
    CHECK(app.status == 0);
    return lines_with(app.output, "GPU-");
  };
  const auto a = list(first.poold().url(), nullptr), b = list(second.poold().url(), nullptr);
  REQUIRE(a.size() == 2);
  REQUIRE(b.size() == 2);
  using Lines = std::vector<std::string>;
  CHECK(list(both(first, second), nullptr) == Lines{a[0], a[1], b[0], b[1]});
  CHECK(list(both(second, first), nullptr) == Lines{b[0], b[1], a[0], a[1]});
  CHECK(list(both(first, second), "3,0") == Lines{b[1], a[0]});
  CHECK(list(both(first, second), b[0].c_str()) == Lines{b[0]});
  CHECK(list(both(first, second), "1,4,0") == Lines{a[1]});
}

TEST_CASE("a list of servers that makes no sense") {
  Pool pool;
  const std::string url = pool.poold().url();
  for (const auto& [list, reason] : {std::pair<std::string, std::string>{url + ",", "''"},
                                     {"," + url, "''"},
                                     {url + ",," + url, "''"},
                                     {url + "," + url, "duplicate"},
                                     {url + ", " + url, "transport"}}) {
    const Finished app = run_to_end({driver_app(), "initialise"}, pool.through({{"GPUPOOL", list}}));
    INFO(list << ": " << app.output);
    CHECK(app.output.find("cuInit CUDA_ERROR_NO_DEVICE, again CUDA_ERROR_NO_DEVICE") != std::string::npos);
    const auto lines = lines_with(app.output, "gpupool:");
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find(reason) != std::string::npos);
  }
}

TEST_CASE("one of the listed servers is not there") {
  Pool pool;
  uint16_t port = 0;
  {
    auto listener = transport::listen({"tcp", "127.0.0.1", 0}, {});
    REQUIRE(listener);
    port = (*listener)->endpoint().port;
  }
  const std::string missing = "tcp://127.0.0.1:" + std::to_string(port);
  for (const std::string& list : {pool.poold().url() + "," + missing, missing + "," + pool.poold().url()}) {
    const Finished app = run_to_end({driver_app(), "initialise"}, pool.through({{"GPUPOOL", list}}));
    INFO(app.output);
    CHECK(app.output.find("cuInit CUDA_ERROR_NO_DEVICE") != std::string::npos);
    const auto lines = lines_with(app.output, "gpupool:");
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find(missing + ":") != std::string::npos);
    CHECK(lines[0].find("refused") != std::string::npos);
  }
}

TEST_CASE("the data of copies between servers does not pass through the program") {
  Pool first(kOneDevice, kPeers), second(kOneDevice, kPeers);
  SlowLink one(first.poold().endpoint(), {}), other(second.poold().endpoint(), {});
  const Finished app = run_patiently({driver_app(), "large_copies_between_devices", "4"},
                                     first.through({{"GPUPOOL", one.url() + "," + other.url()}}));
  INFO(app.output);
  CHECK(app.status == 0);
  constexpr uint64_t kOnce = 16u << 20;
  CHECK(one.bytes_down() + other.bytes_down() < kOnce + kOnce / 2);  // only the final check reads data back
  CHECK(one.bytes_up() + other.bytes_up() <
        9 * kOnce + kOnce / 2);  // the first data, and the copies between the servers
  CHECK(one.bytes_up() + other.bytes_up() > 9 * kOnce);
}

TEST_CASE("copies between servers pass through the program where their operators have named no peers") {
  Pool first(kOneDevice), second(kOneDevice);
  SlowLink one(first.poold().endpoint(), {}), other(second.poold().endpoint(), {});
  const Finished app =
      run_patiently({driver_app(), "large_copies_between_devices", "4"},
                    first.through({{"GPUPOOL", one.url() + "," + other.url()}, {"GPUPOOL_LOG", "debug"}}));
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(app.output.find("--peers") != std::string::npos);
  CHECK(one.bytes_down() + other.bytes_down() > 4 * (16u << 20));
}

TEST_CASE("copies between servers take another way when their connection breaks") {
  Pool first(kOneDevice, kPeers), second(kOneDevice, kPeers);
  for (const int broken : {0, 1}) {
    SlowLink one(first.poold().endpoint(), {}), other(second.poold().endpoint(), {});
    Process app(
        {driver_app(), "large_copies_between_devices", "40"},
        first.through({{"GPUPOOL", one.url() + "," + other.url()}, {"GPUPOOL_BULK_CONNECTIONS", "0"}}));
    REQUIRE(app.await_output("copying"));
    (broken == 0 ? one : other).cut(1);  // connection 0 is the program's
    const int status = app.wait(kLongPatience);
    app.signal(SIGKILL);
    app.await_end_of_output();
    INFO(app.output());
    CHECK(status == 0);
    CHECK(lines_with(app.output(), "gpupool:").empty());
  }
}

TEST_CASE("one of two servers dies at work") {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    std::vector<std::string> options = kPeers;
    options.insert(options.end(), {"--resume-timeout", "0"});  // a stopped worker could return
    Pool lost(kOneDevice, options), kept(kOneDevice, kPeers);
    Process app({driver_app(), "one_of_two_fails"},
                lost.through({{"GPUPOOL", both(lost, kept)}, {"GPUPOOL_DEAD_PEER_TIMEOUT_MS", "8000"}}));
    REQUIRE(app.await_output("working"));
    const pid_t worker = lost.worker_of(app);
    REQUIRE(::kill(worker, signal) == 0);
    const int status = app.wait(kLongPatience);
    app.signal(SIGKILL);
    app.await_end_of_output();
    INFO("signal " << signal << ": " << app.output());
    CHECK(status == 0);
    CHECK(app.output().find("there: CUDA_ERROR_DEVICE_UNAVAILABLE CUDA_ERROR_DEVICE_UNAVAILABLE\n") !=
          std::string::npos);
    CHECK(app.output().find("here, for what waited: CUDA_ERROR_DEVICE_UNAVAILABLE\n") != std::string::npos);
    CHECK(app.output().find("across: CUDA_ERROR_DEVICE_UNAVAILABLE CUDA_ERROR_DEVICE_UNAVAILABLE\n") !=
          std::string::npos);
    CHECK(app.output().find("an event: CUDA_ERROR_DEVICE_UNAVAILABLE\n") != std::string::npos);
    CHECK(app.output().find("here: all is well\n") != std::string::npos);
    const auto lines = lines_with(app.output(), "gpupool:");
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find(lost.poold().url()) != std::string::npos);
    ::kill(worker, SIGKILL);
    CHECK(await_gone(worker));
  }
}
