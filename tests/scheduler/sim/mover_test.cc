// Tests of replays in which running tasks move, and of reservations in replays, against times computed by
// hand.
#include "scheduler/sim/mover.h"

#include "scheduler/sim/replay.h"
#include "scheduler/sim/synthetic.h"
#include "tests/scheduler/sim/traces.h"
#include "tests/support/catch.h"

using namespace gpupool::sim;
using gpupool::placement::PolicyKind;

namespace {

constexpr const char* kColumns =
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time\n";
constexpr const char* kTwoNodes = "sn,cpu_milli,memory_mib,gpu,model\nx,8000,1024,2,A\ny,8000,1024,2,A\n";

Replayed run_with(const std::string& tasks, const MoveOptions& moves, const std::string& nodes = kTwoNodes,
                  Mode mode = Mode::one_host) {
  const auto node_list = read_nodes(nodes);
  const auto task_list = read_tasks(kColumns + tasks);
  return replay({&node_list, &task_list, mode, PolicyKind::spread}, 1, 1, moves);
}

MoveOptions moving() {
  MoveOptions moves;
  moves.defragment = true;
  moves.gpu_memory = 8'000'000'000;  // 8 s at 1 GB/s, and 2 s of silence
  return moves;
}

// a and b are on different nodes when c asks for two GPUs of one.
constexpr const char* kFragmented =
    "a,1,1,1,1000,t,0,10000\nb,1,1,1,1000,t,0,10000\nc,1,1,2,1000,u,1000,1100\n";

}  // namespace

TEST_CASE("a task moves to make room for one that waits") {
  CHECK(run_with(kFragmented, {}).by_tenant.at("u").most == 9000);
  const Replayed out = run_with(kFragmented, moving());
  CHECK(out.by_tenant.at("u").most == Approx(10));
  CHECK(out.placed == 3);
  CHECK(out.defragmentations == 1);
  CHECK(out.admitted == 1);
}

TEST_CASE("a task that moves stands still and ends later") {
  // d gets the node that c has left, and e waits for the end of a and b, which is 10,002 for the one that
  // moved.
  const std::string tasks =
      kFragmented + std::string("d,1,1,2,1000,v,9000,14000\ne,1,1,2,1000,v,9000,14000\n");
  MoveOptions moves = moving();
  moves.moves_per_hour = 1;
  moves.reserve = true;
  const Replayed out = run_with(tasks, moves);
  CHECK(out.by_tenant.at("v").most == 1002);
  CHECK(run_with(tasks, {}).by_tenant.at("v").most == 1100);  // after c, which began at 10,000
}

TEST_CASE("the options of moves are respected") {
  MoveOptions moves = moving();
  SECTION("longest move") {
    moves.longest = 9;
  }
  SECTION("memory per hour") {
    moves.bytes_per_hour = 7'000'000'000;
  }
  SECTION("silence that costs more than it brings") {
    moves.longest = 0;
    moves.silence = 1000;
  }
  CHECK(run_with(kFragmented, moves).by_tenant.at("u").most == 9000);
}

TEST_CASE("the place of a request for which others move is not given away") {
  const std::string tasks = kFragmented + std::string("d,1,1,1,1000,v,1001,1101\n");
  const Replayed out = run_with(tasks, moving());
  CHECK(out.by_tenant.at("u").most == Approx(10));
  // c runs from 1010 to 1110. Until then all GPUs are in use or held.
  CHECK(out.by_tenant.at("v").most == Approx(109));
}

TEST_CASE("moves per hour are measured between the first and the last arrival") {
  const Replayed out = run_with(kFragmented + std::string("d,1,1,1,1000,v,7200,7201\n"), moving());
  CHECK(out.hours == 2);
  CHECK(out.moves_per_hour == 0.5);
  CHECK(out.bytes_per_hour == 4e9);
}

TEST_CASE("a reservation keeps later tasks from passing the first one") {
  const std::string tasks = "a,1,1,1,1000,t,0,100\nb,1,1,2,1000,t,10,20\nc,1,1,1,1000,u,20,1020\n";
  const std::string node = "sn,cpu_milli,memory_mib,gpu,model\nx,8000,1024,2,A\n";
  CHECK(run_with(tasks, {}, node).by_tenant.at("u").most == 0);
  MoveOptions moves;
  moves.reserve = true;
  const Replayed out = run_with(tasks, moves, node);
  CHECK(out.by_tenant.at("t").most == 90);
  CHECK(out.by_tenant.at("u").most == 90);  // from 110, when b has ended
}

TEST_CASE("random tasks on a small cluster: everything is accounted for, with reservations and moves") {
  auto nodes = synthetic_nodes(12);
  const auto kinds = synthetic_tasks(400, 3);
  for (const Mode mode : {Mode::local, Mode::pool, Mode::one_host}) {
    for (const bool reserve : {false, true}) {
      MoveOptions moves = moving();
      moves.reserve = reserve;
      moves.bytes_per_second = 1e10;
      moves.at_once = 0;
      const auto tasks = drawn_tasks(kinds, {.count = 1500, .offered = 1.0}, 96, 7);
      const Replayed out =
          replay({&nodes, &tasks, mode, PolicyKind::fragmentation}, 1, 1, moves);  // checks it
      CHECK(out.placed + out.never == tasks.size());
      CHECK(out.admitted <= out.defragmentations);
      CHECK(out.most_allocated <= 100);
      if (mode == Mode::one_host) CHECK(out.admitted > 0);
    }
  }
}

TEST_CASE("drawn tasks ask for the offered part of the cluster") {
  const auto kinds =
      read_tasks(kColumns + std::string("a,1,1,2,1000,t,0,1000\nb,1,1,0,0,t,0,9\nc,1,1,1,500,t,0,0\n"));
  const Draw draw{.count = 4000, .offered = 0.5, .mean_seconds = 100, .most_seconds = 800};
  const auto tasks = drawn_tasks(kinds, draw, 10, 1);
  REQUIRE(tasks.size() == 4000);
  double gpu_seconds = 0;
  for (const Task& task : tasks) {
    CHECK(task.request.gpus > 0);
    CHECK(task.runs <= 800);
    CHECK(task.runs > 0);
    gpu_seconds += static_cast<double>(task.milli() * task.runs) / 1000;
  }
  CHECK(gpu_seconds / static_cast<double>(tasks.back().arrives) / 10 == Approx(0.5).epsilon(0.1));
  CHECK(drawn_tasks(kinds, draw, 10, 1)[7].arrives == tasks[7].arrives);
  CHECK(drawn_tasks(kinds, draw, 10, 2)[7].arrives != tasks[7].arrives);
}
