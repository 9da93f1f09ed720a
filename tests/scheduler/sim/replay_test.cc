// Arrivals and departures: who waits how long, by hand.
#include "scheduler/sim/replay.h"
#include "tests/scheduler/sim/traces.h"
#include "tests/support/catch.h"

using namespace gpupool::sim;
using gpupool::placement::PolicyKind;

TEST_CASE("tasks wait for those before them, and pass those that do not fit") {
  const auto nodes = read_nodes("sn,cpu_milli,memory_mib,gpu,model\nx,8000,1024,2,A\n");
  // a takes both GPUs until 100; b wants both, c half of one; d could never run. At 100 b starts, at 150 c.
  const auto tasks = read_tasks(
      "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\n"
      "a,1,1,2,1000,t,0,100,0\nb,1,1,2,1000,t,20,70,20\nc,1,1,1,500,u,40,60,40\nd,1,1,3,1000,u,50,60,50\n");
  const Replayed out = replay({&nodes, &tasks, Mode::local, PolicyKind::fragmentation}, 1, 1);
  CHECK(out.placed == 3);
  CHECK(out.never == 1);
  CHECK(out.waiting.most == 110);
  CHECK(out.by_size.at("several GPUs").most == 80);
  CHECK(out.by_size.at("share").mean == 110);
  CHECK(out.by_tenant.at("t").mean == 40);
  CHECK(out.mean_allocated == Approx(100));
  CHECK(out.most_allocated == 100);
  // Slowdowns: t 1 and 1 + 80/50, mean 1.8; u 1 + 110/20 = 6.5.
  CHECK(out.fairness == Approx(8.3 * 8.3 / (2 * (1.8 * 1.8 + 6.5 * 6.5))));
}

TEST_CASE("what fits passes what does not") {
  const auto nodes = read_nodes("sn,cpu_milli,memory_mib,gpu,model\nx,8000,1024,2,A\n");
  const auto tasks = read_tasks(
      "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\n"
      "a,1,1,1,1000,t,0,100,0\nb,1,1,2,1000,t,10,20,10\nc,1,1,1,1000,u,20,30,20\n");
  const Replayed out = replay({&nodes, &tasks, Mode::local, PolicyKind::fragmentation}, 1, 1);
  CHECK(out.by_tenant.at("u").most == 0);
  CHECK(out.by_size.at("several GPUs").most == 90);
}

TEST_CASE("a higher load brings tasks closer together") {
  const auto nodes = read_nodes("sn,cpu_milli,memory_mib,gpu,model\nx,8000,1024,1,A\n");
  const auto tasks = read_tasks(
      "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\na,1,1,1,1000,0,100,0\nb,1,1,1,1000,100,200,100\n");
  CHECK(replay({&nodes, &tasks, Mode::pool, PolicyKind::fragmentation}, 1, 1).waiting.most == 0);
  CHECK(replay({&nodes, &tasks, Mode::pool, PolicyKind::fragmentation}, 2, 1).waiting.most == 50);
}
