// Tests of the replay against waiting times computed by hand.
#include "scheduler/sim/replay.h"

#include "tests/scheduler/sim/traces.h"
#include "tests/support/catch.h"

using namespace gpupool::sim;
using gpupool::placement::PolicyKind;

TEST_CASE("tasks wait for earlier tasks and pass those that do not fit") {
  const auto nodes = read_nodes("sn,cpu_milli,memory_mib,gpu,model\nx,8000,1024,2,A\n");
  // Task a uses both GPUs until 100; b needs both, c half of one, and d never fits. b starts at 100, c at
  // 150.
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

TEST_CASE("tasks that fit are backfilled") {
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
      "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\na,1,1,1,1000,"
      "0,100,0\nb,1,1,1,1000,100,200,100\n");
  CHECK(replay({&nodes, &tasks, Mode::pool, PolicyKind::fragmentation}, 1, 1).waiting.most == 0);
  CHECK(replay({&nodes, &tasks, Mode::pool, PolicyKind::fragmentation}, 2, 1).waiting.most == 50);
}

TEST_CASE("waiting and fairness, each tenant with its own mean") {
  const auto nodes = read_nodes("sn,cpu_milli,memory_mib,gpu,model\nx,8000,1024,1,A\n");
  // One GPU. Task a runs from 0 to 10. b and c arrive at 5 for half of the GPU each and start at 10; b runs
  // 20 s, c 5 s. d arrives at 6 for the whole GPU and starts at 30. e, of another tenant, arrives at 12 for
  // half of the GPU and gets c's half at 15.
  const auto tasks = read_tasks(
      "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\n"
      "a,1,1,1,1000,t,0,10,0\nb,1,1,1,500,t,5,25,5\nc,1,1,1,500,u,5,10,5\nd,1,1,1,1000,u,6,46,6\ne,1,1,1,500,"
      "v,12,22,12\n");
  for (const PolicyKind policy : {PolicyKind::fragmentation, PolicyKind::spread}) {
    const Replayed out = replay({&nodes, &tasks, Mode::local, policy}, 1, 1);
    CHECK(out.placed == 5);
    // Waits: a 0, b 5, c 5, d 24, e 3.
    CHECK(out.waiting.mean == Approx(37.0 / 5));
    CHECK(out.waiting.p50 == 5);
    CHECK(out.waiting.p99 == 24);
    CHECK(out.waiting.most == 24);
    CHECK(out.by_tenant.at("t").mean == 2.5);
    CHECK(out.by_tenant.at("u").mean == 14.5);
    CHECK(out.by_tenant.at("v").mean == 3);
    // Slowdowns: t 1 and 1 + 5/20; u 1 + 5/10, because tasks below 10 s count as 10 s, and 1 + 24/40; v 1 +
    // 3/10.
    const double t = 1.125, u = 1.55, v = 1.3;
    CHECK(out.fairness == Approx((t + u + v) * (t + u + v) / (3 * (t * t + u * u + v * v))));
    // The GPU is full until 12, when the last task arrives.
    CHECK(out.mean_allocated == Approx(100));
  }
}

TEST_CASE("the mean allocation is weighted by time") {
  const auto nodes = read_nodes("sn,cpu_milli,memory_mib,gpu,model\nx,8000,1024,2,A\n");
  // A quarter of the two GPUs is used from 0 to 10, nothing until 20, and everything until 30, when the last
  // task arrives.
  const auto tasks = read_tasks(
      "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
      "a,1,1,1,500,0,10,0\nb,1,1,2,1000,20,30,20\nc,1,1,1,100,30,31,30\n");
  const Replayed out = replay({&nodes, &tasks, Mode::pool, PolicyKind::fragmentation}, 1, 1);
  CHECK(out.mean_allocated == Approx((10 * 25.0 + 10 * 100.0) / 30));
  CHECK(out.most_allocated == 100);
  CHECK(out.fairness == 1);
}
