// libnvidia-ml.so.1 and pool-smi with real poolds on softgpu.
#include <signal.h>

#include <cstdio>

#include "tests/e2e/pool.h"
#include "tests/e2e/shared_pool.h"
#include "tests/protocol/driver/elf_exports.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/http_get.h"
#include "tests/support/lease_maker.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

Finished smi(std::vector<std::string> words, const Environment& environment) {
  words.insert(words.begin(), program_path("pool-smi"));
  return run_to_end(words, environment);
}

std::string query(const std::string& fields, const Environment& environment) {
  const Finished shown = smi({"--query-gpu=" + fields, "--format=csv,noheader,nounits"}, environment);
  INFO(shown.output);
  CHECK(shown.status == 0);
  return shown.output;
}

void passes(const std::vector<std::string>& scenario, const Environment& environment,
            const std::string& says) {
  std::vector<std::string> words{driver_app()};
  words.insert(words.end(), scenario.begin(), scenario.end());
  const Finished app = run_patiently(words, environment);
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(has(app.output, says));
}

}  // namespace

TEST_CASE("nvml and cuda say the same of a GPU") {
  Pool pool(Environment{{"SOFTGPU_DEVICES", "2"}});
  passes({"nvml_agrees_with_cuda"}, pool.through(), "2 agree");
  passes({"nvml_agrees_with_cuda", "cuda_first"}, pool.through(), "2 agree");
}

TEST_CASE("nvml and cuda say the same under a quota") {
  SharedPool pool({"memory = \"128MiB\"", "memory = \"64MiB\""});
  passes({"nvml_agrees_with_cuda"}, pool.of(1), "1 agree");
  CHECK(query("memory.total", pool.of(1)) == "128\n");
  CHECK(query("memory.total", pool.of(2)) == "64\n");
}

TEST_CASE("nvml and cuda say the same of two servers") {
  Pool one, other;
  Environment both = one.through();
  both["GPUPOOL"] += "," + other.poold().url();
  passes({"nvml_agrees_with_cuda"}, both, "2 agree");
  both["CUDA_VISIBLE_DEVICES"] = "1,0";  // NVML ignores it, but its PCI addresses must match CUDA's
  const Finished cuda = run_patiently({driver_app(), "list_devices"}, both);
  INFO(cuda.output);
  for (const std::string& id : {query("uuid", both)}) {
    for (size_t at = 0; at < id.size(); at = id.find('\n', at) + 1)
      CHECK(has(cuda.output, id.substr(at, id.find('\n', at) - at)));
  }
}

TEST_CASE("the sensors of the server's NVML are in its metrics and in the client's NVML") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "uuid";
  Pool pool(Environment{{"FAKE_NVML_UUID_FILE", file}},
            {"--nvml", FAKE_NVML_LIBRARY, "--metrics", "127.0.0.1:0"});
  CHECK(has(query("temperature.gpu", pool.through()), "N/A"));
  folder.write("uuid", query("uuid", pool.through()).substr(0, 40));
  CHECK(eventually([&] { return query("temperature.gpu", pool.through()) == "41\n"; }));
  CHECK(has(query("power.draw", pool.through()), "N/A"));  // its NVML does not report it
  REQUIRE(pool.poold().await_log("/metrics"));
  const std::string metrics = http_get(metrics_port(pool.poold().log()), "/metrics");
  CHECK(has(metrics, "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-"));
  CHECK(has(metrics, "DCGM_FI_DEV_GPU_UTIL{"));
  CHECK(!has(metrics, "DCGM_FI_DEV_POWER_USAGE"));
}

TEST_CASE("nvml shows memory and processes of the own tenant alone") {
  SharedPool pool({"memory = \"160MiB\"", "memory = \"64MiB\""});
  const auto holder = pool.start(1, {"hold_memory"});
  REQUIRE(holder->await_output("holding", kLongPatience));
  const Finished own = smi(
      {"--query-compute-apps=pid,process_name,used_gpu_memory", "--format=csv,noheader,nounits"}, pool.of(1));
  INFO(own.output);
  CHECK(own.output.starts_with(std::to_string(holder->pid()) + ", " + driver_app() + ", "));
  CHECK(lines_with(own.output, ",").size() == 1);
  CHECK(std::stoi(query("memory.used", pool.of(1))) >= 128);
  CHECK(smi({"--query-compute-apps=pid", "--format=csv,noheader"}, pool.of(2)).output.empty());
  CHECK(query("memory.used,memory.free,memory.total", pool.of(2)) == "0, 64, 64\n");
  // A client with a wrong token sees nothing, and the error reveals no more than that of a session.
  Environment nobody = pool.of(1);
  nobody["GPUPOOL_TOKEN"] = std::string(64, 'x');
  const Finished refused = smi({"-L"}, nobody);
  CHECK(refused.status != 0);
  CHECK(has(refused.output, "authentication failed"));
  CHECK(lines_with(refused.output, "gpupool:").size() == 1);
  holder->signal(SIGKILL);
  (void)holder->wait(kLongPatience);
  CHECK(eventually([&] {
    return smi({"--query-compute-apps=pid", "--format=csv,noheader"}, pool.of(1)).output.empty();
  }));
}

TEST_CASE("a GPU's use is the own tenant's") {
  constexpr std::chrono::seconds kShown{100};
  SharedPool pool({"", ""});
  passes({"nvml_utilization", "500"}, pool.of(1), "from 0 to 0 percent");
  // Kernels of 10 ms, compared with which the round trips between them are short.
  const auto busy = pool.start_working(1, {"keep_busy", "600000", "3000000"});
  const auto own_use_is_shown = [&] {
    const Finished own = run_patiently({driver_app(), "nvml_utilization", "500"}, pool.of(1));
    const size_t at = own.output.find(" to ");
    return at != std::string::npos && std::stoi(own.output.substr(at + 4)) >= 50;
  };
  CHECK(eventually(own_use_is_shown, kShown));
  passes({"nvml_utilization", "500"}, pool.of(2), "from 0 to 0 percent");
  CHECK(eventually(own_use_is_shown, kShown));  // the program was still busy during the other tenant's query
  busy->signal(SIGKILL);
}

TEST_CASE("watching takes no session") {
  Pool pool(Environment{}, {"--max-sessions", "1", "--log-level", "debug"});
  Process holder({driver_app(), "hold_memory"}, pool.through());
  REQUIRE(holder.await_output("holding", kLongPatience));
  CHECK(smi({"-L"}, pool.through()).status == 0);
  CHECK(occurrences(pool.poold().log(), "session_running") == 1);
  holder.signal(SIGKILL);
}

TEST_CASE("nvml goes on after a fork") {
  Pool pool;
  passes({"nvml_after_fork"}, pool.through(), "forked");
}
TEST_CASE("nvml serves many threads") {
  Pool pool;
  passes({"nvml_threads"}, pool.through(), "joined");
}
TEST_CASE("every nvml function with nothing and with anything") {
  Pool pool;
  passes({"nvml_any_call"}, pool.through(), " functions, 0 crashed");
  CHECK(smi({"-L"}, pool.through()).status == 0);
}

TEST_CASE("a server that dies is lost to nvml until it is back") {
  Pool pool;
  Process app({driver_app(), "nvml_loses_its_server"}, pool.through());
  REQUIRE(app.await_output("working", kLongPatience));
  const std::string port = std::to_string(pool.poold().port());
  ::kill(pool.poold().pid(), SIGKILL);
  REQUIRE(app.await_output("lost", kLongPatience));
  PooldProcess again("softgpu", {"--listen", "tcp://127.0.0.1:" + port},
                     {{"SOFTGPU_INSTANCE", pool.instance()}, {"SOFTGPU_MEMORY", "256MiB"}});
  CHECK(app.wait(kLongPatience) == 0);
  app.await_end_of_output();
  INFO(app.output());
  CHECK(has(app.output(), "back"));
  CHECK(lines_with(app.output(), "lost the connection to server").size() == 1);
}

TEST_CASE("a lease shows its GPUs to nvml and no others") {
  LeaseMaker maker;
  Pool pool(Environment{{"SOFTGPU_DEVICES", "4"}}, maker.options());
  const Finished told = run_to_end(
      {program_path("pool-admin"), "--poold", "unix:" + pool.poold().admin_socket(), "--json", "gpus"});
  std::vector<std::string> gpus;
  for (size_t at = told.output.find("GPU-"); at != std::string::npos; at = told.output.find("GPU-", at + 1))
    gpus.push_back(told.output.substr(at, 40));
  REQUIRE(gpus.size() == 4);
  const Environment lease = pool.through({{"GPUPOOL_TOKEN", maker.token(maker.lease({gpus[2], gpus[0]}))}});
  passes({"nvml_agrees_with_cuda"}, lease, "2 agree");
  CHECK(query("uuid", lease) == gpus[2] + "\n" + gpus[0] + "\n");
  const Finished nobody = smi({"-L"}, pool.through());
  CHECK(nobody.status == 9);
  CHECK(has(nobody.output, "pool-run"));
}

TEST_CASE("NVIDIA's own python binding reads it") {
  if (kSanitized) return report_skip("a sanitizer's runtime would have to be preloaded into python");
  const Finished made = run_patiently({NVML_MAKE_PYTHON, NVML_PYTHON_FOLDER, "nvidia-ml-py>=13,<14"}, {});
  if (made.status == 77) return report_skip(made.output.substr(0, made.output.find('\n')));
  REQUIRE(made.status == 0);
  Pool pool;
  Process holder({driver_app(), "hold_memory"}, pool.through());
  REQUIRE(holder.await_output("holding", kLongPatience));
  const Finished asked = run_patiently(
      {NVML_PYTHON_FOLDER "/bin/python", NVML_ASK, std::to_string(holder.pid())}, pool.through());
  INFO(asked.output);
  CHECK(asked.status == 0);
  CHECK(has(asked.output, " functions found"));
  holder.signal(SIGKILL);
}

TEST_CASE("the library shows all of NVML and nothing else") {
  std::set<std::string> expected;
#define NVML_FUNCTION(name) expected.insert(#name);
#define NVML_NOT_SUPPORTED(name) NVML_FUNCTION(name)
#define NVML_CHANGES(name) NVML_FUNCTION(name)
#include "protocol/nvml/functions.def"
  CHECK(elf_exports(client_folder() + "/libnvidia-ml.so.1") == expected);
}

TEST_CASE("nvml without a server says why once") {
  const Finished none = smi({}, {});
  CHECK(none.status == 9);
  CHECK(has(none.output, "pool-smi: no server configured: use --server tcp://HOST:PORT, or set GPUPOOL"));
  const Finished nobody = smi({}, {{"GPUPOOL", "tcp://127.0.0.1:1"}});
  CHECK(nobody.status == 9);
  CHECK(lines_with(nobody.output, "gpupool:").size() == 1);
  CHECK(has(smi({}, {{"GPUPOOL", "pool://127.0.0.1:1"}}).output,
            "run pool-smi under pool-run, or use --server tcp://HOST:PORT"));
}

TEST_CASE("pool-smi prints tables lists csv and json") {
  Pool pool(Environment{{"SOFTGPU_DEVICES", "2"}});
  const Finished table = smi({}, pool.through());
  INFO(table.output);
  CHECK(table.status == 0);
  CHECK(has(table.output, " / 256 MiB"));
  CHECK(has(table.output, "driver 580."));
  CHECK(has(table.output, "| N/A              |"));
  CHECK_FALSE(has(table.output, "N/A C"));
  const Finished list = smi({"-L", "-i", "1"}, pool.through());
  CHECK(list.output.starts_with("GPU 1: "));
  CHECK(has(list.output, "(UUID: GPU-"));
  CHECK(smi({"-i", "7"}, pool.through()).status == 6);
  const Finished csv =
      smi({"--query-gpu=index,memory.total,temperature.gpu", "--format=csv"}, pool.through());
  CHECK(csv.output == "index, memory.total [MiB], temperature.gpu\n0, 256 MiB, [N/A]\n1, 256 MiB, [N/A]\n");
  CHECK(smi({"--query-gpu=nothing"}, pool.through()).status == 2);
  const Finished json = smi({"--json"}, pool.through());
  CHECK(has(json.output, "\"memory.total\": 256"));
  for (const char* const unknown :
       {"temperature.gpu", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "ecc.mode.current",
        "persistence_mode", "utilization.memory"}) {
    INFO(unknown);
    CHECK(has(json.output, std::string("\"") + unknown + "\": null"));
  }
  CHECK(has(json.output, "\"utilization.gpu\": 0"));
  Process loop(
      {program_path("pool-smi"), "-l", "0.1", "--query-gpu=index", "--format=csv,noheader", "-i", "0"},
      pool.through());
  CHECK(loop.await_output("0\n0\n0\n", kLongPatience));
  loop.signal(SIGTERM);
}
