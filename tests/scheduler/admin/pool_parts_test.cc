// Tests of pool-admin's text, JSON, KEY=VALUE words and shell completion for a pool.
#include <sstream>

#include "scheduler/admin/completion.h"
#include "scheduler/admin/pool/describe.h"
#include "scheduler/admin/pool/words.h"
#include "scheduler/json/pool_json.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::admin;
using namespace gpupool::testing;

namespace {

// Returns a snapshot with one node, two GPUs, a lease of half of the first one, and a waiting request.
pool::PoolSnapshot snapshot(int64_t taken_ms, uint64_t busy) {
  pool::PoolSnapshot now;
  now.set_taken_ms(taken_ms);
  now.mutable_pool()->set_version("1.2");
  now.mutable_pool()->set_leader(true);
  now.mutable_pool()->set_compute_milli(2000);
  now.mutable_pool()->set_compute_milli_leased(500);
  pool::NodeState* const node = now.add_nodes();
  node->set_name("gpu1");
  node->set_condition(pool::NodeState::DRAINED);
  for (uint32_t index = 0; index < 2; ++index) {
    pool::PoolGpu* const gpu = node->add_gpus();
    gpu->set_node("gpu1");
    gpu->set_index(index);
    gpu->set_uuid("GPU-" + std::to_string(index));
    gpu->set_model("H100");
    gpu->set_memory_bytes(80ull << 30);
  }
  node->mutable_gpus(0)->set_compute_milli_leased(500);
  node->mutable_gpus(0)->set_gpu_nanoseconds(busy);
  pool::LeaseState* const lease = now.add_leases();
  lease->set_id("0123456789abcdef0123456789abcdef");
  lease->set_tenant("team");
  lease->set_held(true);
  lease->set_granted_ms(taken_ms - 65'000);
  lease->set_program("train.py");
  pool::LeasePart* const part = lease->add_parts();
  part->set_node("gpu1");
  part->add_shares()->set_compute_milli(500);
  part->mutable_shares(0)->set_memory_bytes(8ull << 30);
  pool::Waiting* const waiting = now.add_waiting();
  waiting->set_id("q7");
  waiting->set_place(1);
  waiting->set_tenant("other");
  waiting->set_why("needs 4 GPUs on one host");
  waiting->mutable_request()->set_gpus(4);
  waiting->mutable_request()->set_compute_milli(1000);
  return now;
}

}  // namespace

TEST_CASE("the pool view shows leased and busy GPUs and the queue") {
  const auto before = snapshot(1'000'000, 0), now = snapshot(1'002'000, 500'000'000);
  const std::string picture = render_snapshot(now, &before, 0);
  for (const char* const part :
       {"pool-scheduler 1.2, leader", "0.5 of 2 leased (25 %)", "drained", "H100", "50 %", "01234567",
        "train.py", "1m 05s", "held", "q7", "4 x 1", "needs 4 GPUs on one host"}) {
    INFO(part << " in\n" << picture);
    CHECK(has(picture, part));
  }
  CHECK(has(picture, "25 %"));  // busy for 0.5 s of 2 s
  CHECK(has(render_snapshot(pool::PoolSnapshot(), nullptr, 80), "no GPUs"));
}

TEST_CASE("queue reasons are not truncated on a narrow terminal") {
  pool::PoolSnapshot now = snapshot(1'000'000, 0);
  now.mutable_waiting(0)->set_why(
      "waits for 4 GPUs: 2 can be leased now; gpu-1 is drained (new disks), gpu-2 is lost (no heartbeat for "
      "too long)");
  std::string words = queue_text(now.waiting(), 1'000'000, 80), whole;
  CHECK_FALSE(has(words, "…"));
  std::istringstream lines(words);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
  for (const char c : words) {
    if (c != '\n' && (c != ' ' || (!whole.empty() && whole.back() != ' '))) whole += c;
    if (c == '\n' && !whole.empty() && whole.back() != ' ') whole += ' ';
  }
  CHECK(has(whole, now.waiting(0).why()));
}

TEST_CASE("nodes show how long their condition has lasted") {
  pool::PoolSnapshot now = snapshot(1'000'000, 0);
  now.mutable_nodes(0)->set_since_ms(1'000'000 - 65'000);
  now.mutable_nodes(0)->set_because("new disks");
  const std::string table = nodes_text(now.nodes(), 1'000'000, 0);
  CHECK(has(table, "NODE  STATE     SINCE  GPUS"));
  CHECK(has(table, "gpu1  drained  1m 05s  "));
  now.mutable_nodes(0)->set_condition(pool::NodeState::STOPPED);
  CHECK(has(nodes_text(now.nodes(), 1'000'000, 0), " stopped "));
  CHECK(pool::json_of(now.nodes(0))["since_ms"] == 1'000'000 - 65'000);
}

TEST_CASE("leases and nodes show their moves") {
  pool::PoolSnapshot now = snapshot(1'000'000, 0);
  pool::LeaseState& lease = *now.mutable_leases(0);
  pool::LeaseMove& move = *lease.add_moves();
  move.set_state(pool::LeaseMove::MOVING);
  move.set_from("gpu1");
  move.set_to("gpu2");
  move.set_since_ms(1'000'000 - 65'000);
  move.mutable_part()->set_sessions(2);
  CHECK(has(leases_text(now.leases(), 1'000'000, 0), "held; moving to gpu2 (since 1m 05s)"));
  CHECK(pool::json_of(lease)["moves"][0]["state"] == "moving");
  CHECK(pool::json_of(lease)["moves"][0]["part"]["sessions"] == 2);
  move.set_state(pool::LeaseMove::FAILED);
  move.set_reason("a reason");
  CHECK(has(leases_text(now.leases(), 1'000'000, 0), "held; not moved from gpu1: a reason"));
  pool::LeaseMove& back = *lease.add_moves();
  back.set_state(pool::LeaseMove::BACK);
  back.set_from("gpu2");
  back.set_to("gpu1");
  back.set_since_ms(1'000'000 - 65'000);
  back.set_reason("a reason");
  CHECK(has(leases_text(now.leases(), 1'000'000, 0),
            "held; moving back from gpu2 to gpu1 (since 1m 05s): a reason\n"));
  pool::NodeState& node = *now.mutable_nodes(0);
  node.set_because("new fans");
  node.set_leases(3);
  node.set_leases_leaving(2);
  node.set_leases_to_move(1);
  node.set_evict_at_ms(1'000'000 + 65'000);
  CHECK(has(nodes_text(now.nodes(), 1'000'000, 0),
            "new fans; 2 leases move away, 1 waits for room elsewhere, evicts in 1m 05s"));
  CHECK(pool::json_of(node)["leases_to_move"] == 1);
}

TEST_CASE("the pool's JSON has the names of the protocol") {
  const Json json = pool::json_of(snapshot(5, 6));
  CHECK(json["pool"]["compute_milli_leased"] == 500);
  CHECK(json["nodes"][0]["condition"] == "drained");
  CHECK(json["nodes"][0]["gpus"][0]["gpu_nanoseconds"] == 6);
  CHECK(json["leases"][0]["parts"][0]["shares"][0]["compute_milli"] == 500);
  CHECK(json["leases"][0]["end"].is_null());
  CHECK(json["waiting"][0]["request"]["gpus"] == 4);
  CHECK(json["tenants"].empty());
}

TEST_CASE("thousandths of GPUs are parsed and printed as decimal numbers") {
  CHECK(gpus_of(0) == "0");
  CHECK(gpus_of(500) == "0.5");
  CHECK(gpus_of(2000) == "2");
  CHECK(gpus_of(1125) == "1.125");
  const auto quota = read_tenant_quota({"gpus=2.5", "memory=64GiB", "weight=3", "highest_priority=high",
                                        "leases=unlimited", "bandwidth-to-host=1GB/s"});
  REQUIRE(quota);
  CHECK(quota->compute_milli() == 2500);
  CHECK(quota->memory_bytes() == 64ull << 30);
  CHECK(quota->weight() == 3);
  CHECK(quota->highest_priority() == lease::LATENCY_CRITICAL);
  CHECK(quota->has_leases());
  CHECK(quota->leases() == 0);
  CHECK(quota->to_host_bytes_per_second() == 1'000'000'000);
  CHECK_FALSE(quota->has_waiting());
  const auto policy =
      read_policy({"grace=2.5", "preemption=off", "placement=spread", "backfill=10", "move=90"});
  REQUIRE(policy);
  CHECK(policy->grace_ms() == 2500);
  CHECK(policy->move_ms() == 90'000);
  CHECK(has(policy_text(*policy), "\nmove=90 s\n"));
  CHECK(policy->has_preemption());
  CHECK_FALSE(policy->preemption());
  CHECK(policy->placement() == "spread");
  CHECK_FALSE(policy->has_hold_ms());
}

TEST_CASE("an invalid argument is named") {
  for (const std::string word : {"gpus", "gpus=", "gpus=-1", "gpus=x", "memory=8GX", "weight=1.5",
                                 "weight=-1", "highest-priority=top", "colour=red"}) {
    INFO(word);
    const auto read = read_tenant_quota({word});
    REQUIRE_FALSE(read);
    CHECK(has(read.error().message, word.substr(0, word.find('='))));
  }
  const auto small = read_tenant_quota({"memory=8"});
  REQUIRE_FALSE(small);
  CHECK(small.error().message == "memory: '8' is 8 bytes: did you mean 8GiB?");
  CHECK_FALSE(read_tenant_quota({"gpus=1", "gpus=2"}));
  CHECK_FALSE(read_policy({"preemption=yes"}));
  CHECK_FALSE(read_policy({"grace=nan"}));
  CHECK(has(read_policy({"x=1"}).error().message, "node-lost"));
  CHECK(has(read_policy({"placment=spread"}).error().message, "did you mean 'placement'?"));
  CHECK(has(read_tenant_quota({"wieght=2"}).error().message, "did you mean 'weight'?"));
  CHECK(has(read_tenant_quota({"priority=low"}).error().message, "did you mean 'highest-priority'?"));
  CHECK(has(read_tenant_quota({"compute=50"}).error().message,
            "a tenant's quota: unknown key 'compute'; valid keys: "));
  CHECK(has(read_tenant_quota({"compute=50"}).error().message,
            "a pool's quota is a number of GPUs: 50 percent of one is gpus=0.5"));
  CHECK(has(read_tenant_quota({"compute=12.5%"}).error().message, "12.5 percent of one is gpus=0.125"));
  CHECK(has(read_tenant_quota({"compute=half"}).error().message, "like gpus=0.5"));
}

TEST_CASE("pool-admin completes arguments for a shell") {
  const auto complete = [](std::vector<std::string> words) {
    words.insert(words.begin(), {program_path("pool-admin"), "--complete"});
    return run_to_end(words, {{"GPUPOOL_SCHEDULER", ""}}).output;
  };
  CHECK(has(complete({""}), "sessions\n"));
  CHECK_FALSE(has(complete({""}), "drain\n"));
  CHECK(complete({"quota", "s"}) == "set\nshow\n");
  CHECK(has(complete({"--scheduler", "h:1", ""}), "drain\n"));
  CHECK(complete({"--scheduler", "h:1", "drain", "--e"}) == "--evict\n");
  CHECK(complete({"--scheduler", "h:1", "drain", "--m"}) == "--move\n");
  CHECK(complete({"--scheduler", "h:1", "mo"}) == "move\n");
  CHECK(complete({"--scheduler", "h:1", "move", "--t"}) == "--to\n--token-file\n");
  for (const std::string shell : {"bash", "zsh", "fish"}) CHECK(has(completion_script(shell), "--complete"));
  CHECK(run_to_end({program_path("pool-admin"), "completion", "bash"}, {{"GPUPOOL_SCHEDULER", ""}}).output ==
        completion_script("bash"));
  CHECK(run_to_end({"bash", "-c",
                    completion_script("bash") + "COMP_WORDS=(" + program_path("pool-admin") +
                        " quo); COMP_CWORD=1; _pool_admin; echo ${COMPREPLY[@]}"},
                   {{"GPUPOOL_SCHEDULER", ""}})
            .output == "quota\n");
}

TEST_CASE("pool-admin names an invalid argument and an unreachable scheduler") {
  const auto pool_admin = [](std::vector<std::string> words) {
    words.insert(words.begin(), program_path("pool-admin"));
    return run_to_end(words, {{"GPUPOOL_SCHEDULER", "127.0.0.1:1"}, {"GPUPOOL_TOKEN", "x"}});
  };
  CHECK(pool_admin({"--help"}).status == 0);
  CHECK(pool_admin({}).status == 2);
  CHECK(has(pool_admin({"bogus"}).output, "unknown command 'bogus'"));
  CHECK(has(pool_admin({"--unknown"}).output, "unknown option '--unknown'"));
  CHECK(has(pool_admin({"evict", "--unknown"}).output, "unknown option '--unknown'"));
  CHECK(pool_admin({"bogus"}).status == 2);
  CHECK(pool_admin({"drain"}).status == 2);
  CHECK(pool_admin({"quota", "set", "team", "gpus=x"}).status == 2);
  CHECK(pool_admin({"--scheduler", "h:x", "nodes"}).status == 2);
  const Finished away = pool_admin({"nodes"});
  CHECK(away.status == 3);
  CHECK(has(away.output,
            "cannot reach pool-scheduler at 127.0.0.1:1 (Connection refused): check host and port"));
}
