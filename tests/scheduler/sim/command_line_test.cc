// Tests of the program pool-sim, and of the scripts that print the tables of docs/placement.md.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/scheduler/sim/traces.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "pool-sim-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    write("nodes.csv", gpupool::sim::kFourNodes);
    write("tasks.csv", gpupool::sim::kEightGpus);
  }
  ~Folder() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  std::string read(const std::string& name) const {
    std::ifstream in(path_ / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  struct Ended {
    int status;
    std::string text;  // stdout and stderr
  };
  Ended run(const std::string& arguments) const { return call(POOL_SIM " " + arguments); }
  Ended call(const std::string& command) const {
    std::FILE* const pipe = popen(("cd " + path_.string() + " && " + command + " 2>&1").c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string text;
    char buffer[4096];
    for (size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, got);
    return {WEXITSTATUS(pclose(pipe)), text};
  }

 private:
  fs::path path_;
};

}  // namespace

TEST_CASE("the experiment from files, as text, JSON and picture") {
  const Folder folder;
  const auto ended = folder.run(
      "--nodes nodes.csv --tasks tasks.csv --policy fragmentation,random --seeds 3 --json out.json --plot "
      "out.svg");
  CHECK(ended.text.find("4 nodes, 8 GPUs (nodes.csv), 11 tasks (tasks.csv), mode local") == 0);
  CHECK(ended.status == 0);
  const auto json = nlohmann::json::parse(folder.read("out.json"));
  REQUIRE(json["runs"].size() == 2);
  CHECK(json["runs"][1]["policy"] == "random");
  CHECK(json["runs"][0]["seeds"].size() == 3);
  CHECK(json["runs"][0]["offline_percent_at_100"] == 100);
  CHECK(folder.read("out.svg").find("fragmentation") != std::string::npos);
  const auto again = folder.run("--nodes nodes.csv --tasks tasks.csv --mode pool --seeds 1 --json -");
  CHECK(nlohmann::json::parse(again.text)["mode"] == "pool");
}

TEST_CASE("a replay, and a synthetic cluster") {
  const Folder folder;
  const auto replay = folder.run("--nodes nodes.csv --tasks tasks.csv --replay --json -");
  CHECK(nlohmann::json::parse(replay.text)["runs"][0]["placed"] == 11);
  const auto synthetic = folder.run("--synthetic 20 --seeds 1 --json -");
  CHECK(nlohmann::json::parse(synthetic.text)["nodes"]["gpus"] == 160);
}

TEST_CASE("a replay with and without moves") {
  const Folder folder;
  const auto replay = folder.run(
      "--synthetic 12 --replay --offered 95 --draws 400 --mode one-host --reserve --defragment "
      "--moves-at-once 0 "
      "--json -");
  REQUIRE(replay.status == 0);
  const auto json = nlohmann::json::parse(replay.text);
  CHECK(json["mode"] == "one-host");
  CHECK(json["tasks"]["count"] == 400);
  REQUIRE(json["runs"].size() == 2);
  CHECK(json["runs"][0]["defragment"] == false);
  CHECK(json["runs"][1]["defragment"] == true);
  CHECK(json["runs"][1]["defragmentation"]["moves_per_hour"].is_number());
  const auto text = folder.run("--nodes nodes.csv --tasks tasks.csv --replay --defragment");
  CHECK(text.text.find("fragmentation+moves") != std::string::npos);
  CHECK(text.text.find(" moves and ") != std::string::npos);
}

TEST_CASE("pool-sim rejects invalid options and files") {
  const Folder folder;
  const auto fails = [&](const std::string& arguments, int status, const std::string& text) {
    const auto ended = folder.run(arguments);
    CHECK(ended.status == status);
    CHECK(ended.text == "pool-sim: " + text + "\n");
  };
  folder.write("bad.csv", "sn,cpu_milli,memory_mib,gpu,model\nx,1,1,two,A\n");
  folder.write("empty.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n");
  fails("--nodes bad.csv --tasks tasks.csv", 1, "bad.csv:2:7: gpu 'two' is not an integer");
  fails("--nodes none.csv --tasks tasks.csv", 1, "none.csv: No such file or directory");
  fails("--nodes nodes.csv --tasks empty.csv", 1, "empty.csv: no tasks");
  fails("--nodes nodes.csv", 2, "--tasks FILE is required");
  fails("--tasks tasks.csv", 2, "--nodes FILE or --synthetic NODES is required");
  const auto policy = folder.run("--nodes nodes.csv --tasks tasks.csv --policy best");
  CHECK(policy.status == 2);
  CHECK(policy.text.find("unknown policy 'best'; valid: fragmentation, fgd,") != std::string::npos);
}

TEST_CASE("the script of docs/placement.md prints its tables from the traces of a folder") {
  if (std::string(PYTHON).find("NOTFOUND") != std::string::npos)
    return gpupool::testing::report_skip("there is no python3");
  const Folder folder;  // its trace gives different results for the policies and modes
  folder.write("openb_node_list_gpu_node.csv",
               "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,65536,2,A\nn1,32000,65536,2,A\nn2,4000,65536,2,"
               "A\nn3,32000,65536,2,B\n");
  folder.write("openb_pod_list_tiny.csv",
               "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1000,1024,1,700,\nb,3000,1024,1,700,"
               "\nc,1000,1024,1,650,\n"
               "e,1000,1024,1,300,\nf,6000,1024,1,330,\ng,1000,1024,1,270,\ni,1000,1024,1,1000,B\nk,1000,"
               "1024,2,1000,\n");
  folder.write("published-allocation.csv",
               "trace,policy,allocated_percent_at_100,allocated_percent_at_130\ntiny,FGD,98.5,99.25\n");
  const auto allocated = [&](const std::string& mode, const std::string& policy) {
    const auto ended = folder.call(
        POOL_SIM
        " --nodes openb_node_list_gpu_node.csv --tasks openb_pod_list_tiny.csv --seeds 7 --json - --mode " +
        mode + " --policy " + policy);
    INFO(ended.text);
    REQUIRE(ended.status == 0);
    const auto run = nlohmann::json::parse(ended.text)["runs"][0];
    char both[64];
    std::snprintf(both, sizeof both, "%.2f / %.2f", run["allocated_percent_at_100"].get<double>(),
                  run["allocated_percent_at_130"].get<double>());
    return std::string(both);
  };
  const auto ended = folder.call(PYTHON " " PLACEMENT_TABLE " . --seeds 7 --pool-sim " POOL_SIM);
  INFO(ended.text);
  CHECK(ended.status == 0);
  const std::string fgd = allocated("local", "fgd");
  CHECK(ended.text.find("| tiny | 98.50 / 99.25 | " + fgd + " | " + allocated("local", "fragmentation") +
                        " | " + allocated("pool", "bestfit") + " | " + allocated("pool", "fragmentation") +
                        " | ") != std::string::npos);
  CHECK(ended.text.find(" | " + fgd.substr(0, fgd.find(' ')) + " (98.50) |\n") != std::string::npos);
}

TEST_CASE("the script of docs/placement.md names a folder without traces") {
  if (std::string(PYTHON).find("NOTFOUND") != std::string::npos)
    return gpupool::testing::report_skip("there is no python3");
  const Folder folder;
  const auto ended = folder.call(PYTHON " " PLACEMENT_TABLE " .");
  CHECK(ended.status == 1);
  CHECK(ended.text.find("no openb_pod_list_*.csv in .") != std::string::npos);
}

TEST_CASE("the script of docs/placement.md prints the table of moves from the traces of a folder") {
  if (std::string(PYTHON).find("NOTFOUND") != std::string::npos)
    return gpupool::testing::report_skip("there is no python3");
  const Folder folder;
  folder.write("openb_node_list_gpu_node.csv", gpupool::sim::kFourNodes);
  folder.write("openb_pod_list_tiny.csv", gpupool::sim::kEightGpus);
  const auto ended = folder.call(PYTHON " " DEFRAGMENTATION_TABLE
                                        " . --every 1 --offered 90 --draws 200 --seeds 1 --pool-sim " POOL_SIM
                                        " --gpu-memory 1 --move-silence 0");
  INFO(ended.text);
  CHECK(ended.status == 0);
  const auto direct = folder.run(
      "--nodes openb_node_list_gpu_node.csv --tasks openb_pod_list_tiny.csv --mode one-host --replay "
      "--reserve "
      "--defragment --offered 90 --draws 200 --gpu-memory 1 --move-silence 0 --json -");
  const auto run = nlohmann::json::parse(direct.text)["runs"][1];
  char row[128];
  std::snprintf(row, sizeof row, "\n| tiny, 90 %%, moves | %.2f | %.0f / ",
                run["mean_allocated_percent"].get<double>(), run["waiting_seconds"]["mean"].get<double>());
  CHECK(ended.text.find("\n| tiny, 90 % |") != std::string::npos);
  CHECK(ended.text.find(row) != std::string::npos);
}
