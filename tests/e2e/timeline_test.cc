// pool-run --timeline: the file shows what the program and its servers did.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/e2e/json.h"
#include "tests/e2e/shared_pool.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"

using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

constexpr double kMicrosecond = 1;  // as in the file

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Timeline {
  explicit Timeline(const std::string& path) : events(parse_json(content(path))) {}

  std::vector<Json> in_category(const std::string& category) const {
    std::vector<Json> found;
    for (const Json& event : events) {
      if (event.value("cat", "") == category) found.push_back(event);
    }
    return found;
  }
  std::vector<Json> named(const std::string& name) const {
    std::vector<Json> found;
    for (const Json& event : events) {
      if (event.at("name") == name) found.push_back(event);
    }
    return found;
  }
  uint64_t bytes(const std::string& name) const {
    uint64_t sum = 0;
    for (const Json& event : named(name)) sum += event.at("args").at("bytes").get<uint64_t>();
    return sum;
  }
  // How wrong a server's times may be, in microseconds.
  double error() const {
    double most = 0;
    for (const Json& event : named("quality of the server's times")) {
      const Json& told = event.at("args");
      CHECK(told.at("clock_known") == 1);
      most = std::max(
          most, (told.at("clock_error_ns").get<double>() + told.at("gpu_error_ns").get<double>()) * 1e-3);
    }
    return most;
  }
  Json events;
};

double begin_of(const Json& event) {
  return event.at("ts").get<double>();
}
double end_of(const Json& event) {
  return begin_of(event) + event.value("dur", 0.0);
}

std::vector<std::string> with_timeline(const std::string& file, std::vector<std::string> program) {
  program.insert(program.begin(), {program_path("pool-run"), "--timeline", file, "--"});
  return program;
}

// The number that follows `name` in a program's output.
uint64_t number(const std::string& output, const std::string& name) {
  const size_t at = output.find(name);
  REQUIRE(at != std::string::npos);
  return std::stoull(output.substr(at + name.size()));
}

void check_streams(const Timeline& timeline) {
  std::map<std::pair<int64_t, int64_t>, std::vector<Json>> rows;
  for (const char* const category : {"gpu", "server"}) {
    for (const Json& event : timeline.in_category(category))
      rows[{event.at("pid").get<int64_t>(), event.at("tid").get<int64_t>()}].push_back(event);
  }
  CHECK(rows.size() >= 2);  // one for each stream
  for (auto& [row, spans] : rows) {
    std::sort(spans.begin(), spans.end(),
              [](const Json& one, const Json& two) { return begin_of(one) < begin_of(two); });
    for (size_t i = 1; i < spans.size(); ++i) {
      INFO(spans[i - 1].dump() << " " << spans[i].dump());
      CHECK(end_of(spans[i - 1]) <= begin_of(spans[i]) + 0.01 * kMicrosecond);
      CHECK(spans[i - 1].at("args").at("command") <= spans[i].at("args").at("command"));
    }
  }
}

}  // namespace

TEST_CASE("a timeline shows the calls and the work on the GPU that they caused") {
  Pool pool;
  TemporaryFolder folder;
  const std::string file = folder.path() / "out.json";
  // With and without bulk connections.
  const std::string large = GENERATE("300000", "5000000");
  const Finished program =
      run_patiently(with_timeline(file, {driver_app(), "timeline", large}), pool.through());
  INFO(program.output);
  REQUIRE(program.status == 0);
  const Timeline timeline(file);

  const auto calls = timeline.in_category("call");
  REQUIRE(!calls.empty());
  double first = begin_of(calls.front()), last = 0;
  for (const Json& call : calls) {
    first = std::min(first, begin_of(call));
    last = std::max(last, end_of(call));
  }
  const auto kernels = timeline.named("burn");
  CHECK(kernels.size() == number(program.output, "kernels "));
  const double error = timeline.error();
  CHECK(error > 0);
  for (const Json& kernel : kernels) {
    INFO(kernel.dump() << " error " << error);
    CHECK(kernel.at("cat") == "gpu");
    CHECK(kernel.at("dur").get<double>() > 0);
    CHECK(begin_of(kernel) >= first - error);
    CHECK(end_of(kernel) <= last + error);
  }
  CHECK(timeline.bytes("copy to device") == number(program.output, "to device "));
  CHECK(timeline.bytes("copy from device") == number(program.output, "from device "));
  CHECK(timeline.bytes("fill or copy on device") == 2 * 4096);
  check_streams(timeline);

  CHECK(timeline.named("cuLaunchKernel").size() == kernels.size());
  CHECK(!timeline.named("wait: reply").empty());
  CHECK(!timeline.named("start of the program").empty());
  for (const Json& end : timeline.named("end of the timeline")) CHECK(end.at("args").at("dropped_here") == 0);
  for (const Json& end : timeline.named("quality of the server's times"))
    CHECK(end.at("args").at("dropped_on_server") == 0);
}

TEST_CASE("without the option there is no file") {
  Pool pool;
  TemporaryFolder folder;
  const Finished program =
      run_patiently({"/bin/sh", "-c", "cd \"$1\" && exec \"$0\" -- \"$2\" timeline 300000",
                     program_path("pool-run"), folder.path(), driver_app()},
                    pool.through());
  INFO(program.output);
  CHECK(program.status == 0);
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a file that cannot be written is named before the program runs") {
  Pool pool;
  const Finished program = run_patiently(
      with_timeline("/nonexistent/out.json", {driver_app(), "timeline", "300000"}), pool.through());
  CHECK(program.status == 2);
  CHECK(program.output.find("/nonexistent/out.json") != std::string::npos);
  CHECK(program.output.find("kernels") == std::string::npos);
}

TEST_CASE("waits for a hard limit of compute are in the timeline with their reason") {
  SharedPool pool({"compute = 5\nmode = \"hard\""});
  TemporaryFolder folder;
  const std::string file = folder.path() / "out.json";
  const Finished program =
      run_patiently(with_timeline(file, {driver_app(), "keep_busy", "1500", "300000"}), pool.of(1));
  INFO(program.output);
  REQUIRE(program.status == 0);
  const Timeline timeline(file);
  double waited = 0;
  for (const Json& wait : timeline.named("worker waits")) {
    if (wait.at("args").at("for") == "its turn on the GPU") waited += wait.at("dur").get<double>();
  }
  CHECK(waited > 200'000 * kMicrosecond);
  CHECK(!timeline.named("turn on the GPU").empty());
}

TEST_CASE("a program that is killed leaves a timeline") {
  Pool pool;
  TemporaryFolder folder;
  const std::string file = folder.path() / "out.json";
  Process program(with_timeline(file, {driver_app(), "keep_busy", "600000", "20000"}), pool.through());
  REQUIRE(program.await_output("working", kLongPatience));
  CHECK(eventually([&] { return has(content(file), "\"burn\""); }, kLongPatience));
  program.signal(SIGKILL);
  CHECK(program.wait() == 128 + SIGKILL);
  std::string text = content(file);
  // Killed in the middle of a write: complete but for the closing bracket.
  if (!text.ends_with("\n]\n")) text = text.substr(0, text.rfind("},\n") + 1) + "\n]\n";
  std::set<std::string> names;
  for (const Json& event : parse_json(text)) names.insert(event.at("name").get<std::string>());
  CHECK(names.contains("burn"));
  CHECK(names.contains("cuLaunchKernel"));
}

TEST_CASE("processes and servers of a program are in one timeline") {
  Pool first, second;
  TemporaryFolder folder;
  const std::string file = folder.path() / "out.json";
  const std::string script = "\"$0\" timeline 300000 & first=$!; \"$0\" timeline 300000 && wait $first";
  const Finished program =
      run_patiently(with_timeline(file, {"/bin/sh", "-c", script, driver_app()}),
                    first.through({{"GPUPOOL", first.poold().url() + "," + second.poold().url()}}));
  INFO(program.output);
  REQUIRE(program.status == 0);
  const Timeline timeline(file);
  std::map<int64_t, size_t> kernels, calls;
  for (const Json& kernel : timeline.named("burn")) ++kernels[kernel.at("pid").get<int64_t>()];
  for (const Json& call : timeline.named("cuLaunchKernel")) ++calls[call.at("pid").get<int64_t>()];
  CHECK(calls.size() == 2);
  CHECK(kernels.size() == 2);  // each process uses device 0 only
  for (const auto& [process, count] : kernels) CHECK(count == 10);
  CHECK(timeline.named("quality of the server's times").size() == 4);
  CHECK(timeline.named("end of the timeline").size() == 2);
}
