// Tests of reading clusters and tasks from CSV files.
#include "scheduler/sim/trace.h"

#include "tests/scheduler/sim/traces.h"
#include "tests/support/catch.h"

using namespace gpupool::sim;

namespace {

std::string nodes_error(const std::string& text) {
  return nodes_of(*Csv::parse("n.csv", text)).error().message;
}
std::string tasks_error(const std::string& row) {
  return tasks_of(
             *Csv::parse(
                 "t.csv",
                 "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n" + row))
      .error()
      .message;
}

}  // namespace

TEST_CASE("nodes and tasks are read") {
  const auto nodes =
      read_nodes("model,gpu,sn,memory_mib,cpu_milli,zone,rack,gpu_memory_mib\nA,8,x,2,3000,z,r,16\n");
  REQUIRE(nodes.size() == 1);
  CHECK(nodes[0].name == "x");
  CHECK(nodes[0].model == "A");
  CHECK(nodes[0].gpus == 8);
  CHECK(nodes[0].cpu_milli == 3000);
  CHECK(nodes[0].host_memory == 2 << 20);
  CHECK(nodes[0].gpu_memory == 16 << 20);
  CHECK(nodes[0].zone + nodes[0].rack == "zr");

  const auto tasks = read_tasks(kEightGpus);
  REQUIRE(tasks.size() == 11);
  CHECK(tasks[0].request.milli == 700);
  CHECK(tasks[0].tenant == "LS");
  CHECK(tasks[0].runs == 100);
  CHECK(tasks[9].request.models == std::vector<std::string>{"A", "B"});
  CHECK(tasks[10].request.gpus == 2);
  CHECK(tasks[10].milli() == 2000);
  const auto none = read_tasks("name,cpu_milli,memory_mib,num_gpu,gpu_milli\nq,1,1,0,0\n");
  CHECK(none[0].milli() == 0);
}

TEST_CASE("bad lines are named") {
  CHECK(nodes_error("sn,cpu_milli,memory_mib,gpu\n") == "n.csv:1:1: missing column 'model'");
  CHECK(nodes_error("sn,cpu_milli,memory_mib,gpu,model\nx,1,1,17,A\n") ==
        "n.csv:2:7: gpu '17' must be 0 to 16");
  CHECK(nodes_error("sn,cpu_milli,memory_mib,gpu,model\nx,1,1,1,A\nx,1,1,1,A\n") ==
        "n.csv:3:1: sn 'x' is a duplicate");
  CHECK(nodes_error("sn,cpu_milli,memory_mib,gpu,model\n,1,1,1,A\n") == "n.csv:2:1: sn is empty");
  CHECK(nodes_error("sn,cpu_milli,memory_mib,gpu,model\nx,1,1,1,A|B\n") ==
        "n.csv:2:9: model contains '|', which separates models in tasks");
  CHECK(tasks_error("a,1,1,1,1001,,,\n") == "t.csv:2:9: gpu_milli '1001' must be 1 to 1000");
  CHECK(tasks_error("a,1,1,1,0,,,\n") == "t.csv:2:9: gpu_milli '0' must be 1 to 1000");
  CHECK(tasks_error("a,-5,1,1,1,,,\n") == "t.csv:2:3: cpu_milli '-5' must be 0 to 1099511627776");
  CHECK(tasks_error("a,1,1,1,1,A||B,,\n") == "t.csv:2:11: gpu_spec names an empty model");
  CHECK(tasks_error("a,1,1,1,1,,20,10\n") == "t.csv:2:15: deletion_time is before the task's start");
}
