// Checkpoints of running programs (cuCheckpointProcess...): lock, checkpoint, restore and unlock, by other
// processes.
#include <signal.h>

#include <fstream>

#include "tests/e2e/json.h"
#include "tests/e2e/shared_pool.h"
#include "tests/support/skip.h"

using namespace gpupool::testing;

namespace {

// A pool whose device has 128 MiB, and helpers that change the checkpoint state of its programs.
class SmallPool {
 public:
  explicit SmallPool(const std::vector<std::string>& options = {}, Environment environment = {})
      : pool_(small(std::move(environment)), options) {}
  Pool* operator->() { return &pool_; }
  std::string file(const std::string& name) { return folder_.path() / name; }
  void touch(const std::string& name) { std::ofstream(file(name)) << "."; }
  std::unique_ptr<Process> start(std::vector<std::string> scenario, Environment environment = {}) {
    scenario.insert(scenario.begin(), driver_app());
    return std::make_unique<Process>(scenario, pool_.through(std::move(environment)));
  }
  // Runs change_state_of of driver_app and returns its line for each action.
  std::string act(const Process& target, const std::string& actions, const std::string& timeout = "0") {
    return act(target.pid(), actions, pool_.through(), timeout);
  }
  static std::string act(pid_t pid, const std::string& actions, const Environment& environment,
                         const std::string& timeout = "0") {
    const Finished done =
        run_patiently({driver_app(), "change_state_of", std::to_string(pid), actions, timeout}, environment);
    CHECK(done.status == 0);
    std::string said;
    for (const std::string& line : lines_with(done.output, ": CUDA_")) said += line + "\n";
    return said;
  }
  // Returns how much memory a new client can allocate until it is refused ("took N", in blocks of 8 MiB).
  std::string taken() {
    const size_t ended = occurrences(pool_.poold().log(), "session_ended");
    const std::string said = run_patiently({driver_app(), "takes_until_refused"}, pool_.through()).output;
    CHECK(pool_.poold().await_log("session_ended", ended + 1));  // and has given everything back
    return lines_with(said, "took ").at(0);  // the client also prints which quota refused the rest
  }
  Json ask(std::vector<std::string> words) {
    words.insert(words.begin(),
                 {program_path("pool-admin"), "--poold", "unix:" + pool_.poold().admin_socket(), "--json"});
    return parse_json(run_to_end(words).output);
  }
  // Waits until `locker` waits for a lock of the only session, and returns poold's dump of that session.
  Json await_lock_by(const Process& locker) {
    Json dump;
    REQUIRE(eventually([&] {
      dump = ask({"dump", "1"});
      return dump["state_change"] == "lock" &&
             dump["locked_by"].get<std::string>().find("(process " + std::to_string(locker.pid())) !=
                 std::string::npos;
    }));
    return dump;
  }
  Json session(const Process& program) {
    for (const Json& session : ask({"sessions"})) {
      if (session["pid"] == program.pid()) return session;
    }
    return {};
  }

 private:
  static Environment small(Environment environment) {
    environment.insert({"SOFTGPU_MEMORY", "128MiB"});
    return environment;
  }

  TemporaryFolder folder_;
  Pool pool_;
};

bool ends_well(Process& program) {
  const bool good = program.wait(kLongPatience) == 0 && program.await_end_of_output();
  UNSCOPED_INFO(program.output());
  return good && program.output().find("all right") != std::string::npos;
}

// Waits until the program has printed more rounds.
bool makes_progress(Process& program) {
  const size_t before = occurrences(program.output(), "round");
  return program.await_output([&](const std::string& now) { return occurrences(now, "round") > before + 2; });
}

}  // namespace

TEST_CASE("a program that is checkpointed makes room and computes on when it is restored") {
  TemporaryFolder folder;
  const bool by_quota = GENERATE(false, true);
  SmallPool pool(
      by_quota ? std::vector<std::string>{"--config", folder.write("poold.toml",
                                                                   "[default_quota]\nmemory = \"104MiB\"\n")}
               : std::vector<std::string>{});
  const auto target = pool.start({"computes_until", pool.file("end"), "10"});
  REQUIRE(makes_progress(*target));
  const std::string beside = pool.taken();
  CHECK(pool.act(*target, "state") == "state: CUDA_SUCCESS, running\n");
  CHECK(pool.act(*target, "lock") == "lock: CUDA_SUCCESS, locked\n");
  CHECK(pool.session(*target)["state"] == "locked");
  const size_t rounds = occurrences(target->output(), "round");
  CHECK(pool.act(*target, "checkpoint") == "checkpoint: CUDA_SUCCESS, checkpointed\n");
  const Json checkpointed = pool.session(*target);
  CHECK(checkpointed["state"] == "checkpointed");
  CHECK(checkpointed["gpus"][0]["memory_checkpointed_bytes"] >= (80u << 20));
  CHECK(checkpointed["gpus"][0]["memory_used_bytes"] < (80u << 20));
  // The checkpoint frees ten blocks of 8 MiB.
  const std::string alone = pool.taken();
  INFO("beside it: " << beside << ", alone: " << alone);
  CHECK(std::atoi(alone.c_str() + 5) == std::atoi(beside.c_str() + 5) + 10);
  {
    const auto other = pool.start({"computes_until", pool.file("other_end"), "6"});
    REQUIRE(makes_progress(*other));
    CHECK(pool.act(*target, "restore") == "restore: CUDA_ERROR_OUT_OF_MEMORY, checkpointed\n");
    CHECK(pool.act(*target, "unlock") == "unlock: CUDA_ERROR_ILLEGAL_STATE, checkpointed\n");
    pool.touch("other_end");
    CHECK(ends_well(*other));
  }
  REQUIRE(eventually([&] { return pool.act(*target, "restore") == "restore: CUDA_SUCCESS, locked\n"; }));
  CHECK(occurrences(target->output(), "round") <= rounds + 1);  // one more line may have been in the pipe
  CHECK(pool.act(*target, "unlock") == "unlock: CUDA_SUCCESS, running\n");
  CHECK(pool.session(*target)["state"] == "running");
  CHECK(makes_progress(*target));
  CHECK(pool.taken() == beside);
  pool.touch("end");
  CHECK(ends_well(*target));
  CHECK(eventually([&] {
    return std::atoi(pool.taken().c_str() + 5) >= std::atoi(alone.c_str() + 5);
  }));  // the memory of its code is free, too
}

TEST_CASE("a program can be checkpointed again and again") {
  SmallPool pool;
  const auto target = pool.start({"computes_until", pool.file("end"), "6"});
  REQUIRE(makes_progress(*target));
  for (int i = 0; i < 4; ++i) {
    CHECK(pool.act(*target, "lock,checkpoint,restore,unlock") ==
          "lock: CUDA_SUCCESS, locked\ncheckpoint: CUDA_SUCCESS, checkpointed\n"
          "restore: CUDA_SUCCESS, locked\nunlock: CUDA_SUCCESS, running\n");
    CHECK(makes_progress(*target));
  }
  pool.touch("end");
  CHECK(ends_well(*target));
}

TEST_CASE("a locked program waits for longer than a dead peer may be silent") {
  SmallPool pool({"--dead-peer-timeout", "4"});
  const auto target =
      pool.start({"computes_until", pool.file("end"), "2"}, {{"GPUPOOL_DEAD_PEER_TIMEOUT_MS", "5000"}});
  REQUIRE(makes_progress(*target));
  CHECK(pool.act(*target, "lock,checkpoint") ==
        "lock: CUDA_SUCCESS, locked\ncheckpoint: CUDA_SUCCESS, checkpointed\n");
  ::usleep(8'000'000);
  CHECK(pool.act(*target, "restore,unlock") ==
        "restore: CUDA_SUCCESS, locked\nunlock: CUDA_SUCCESS, running\n");
  CHECK(makes_progress(*target));
  pool.touch("end");
  CHECK(ends_well(*target));
}

TEST_CASE("requests in the wrong state are refused") {
  SmallPool pool;
  const auto target = pool.start({"computes_until", pool.file("end"), "1"});
  REQUIRE(makes_progress(*target));
  CHECK(pool.act(
            *target,
            "checkpoint,restore,unlock,lock,lock,restore,checkpoint,checkpoint,unlock,lock,restore,unlock") ==
        "checkpoint: CUDA_ERROR_ILLEGAL_STATE, running\n"
        "restore: CUDA_ERROR_ILLEGAL_STATE, running\n"
        "unlock: CUDA_ERROR_ILLEGAL_STATE, running\n"
        "lock: CUDA_SUCCESS, locked\n"
        "lock: CUDA_ERROR_ILLEGAL_STATE, locked\n"
        "restore: CUDA_ERROR_ILLEGAL_STATE, locked\n"
        "checkpoint: CUDA_SUCCESS, checkpointed\n"
        "checkpoint: CUDA_ERROR_ILLEGAL_STATE, checkpointed\n"
        "unlock: CUDA_ERROR_ILLEGAL_STATE, checkpointed\n"
        "lock: CUDA_ERROR_ILLEGAL_STATE, checkpointed\n"
        "restore: CUDA_SUCCESS, locked\n"
        "unlock: CUDA_SUCCESS, running\n");
  pool.touch("end");
  CHECK(ends_well(*target));
}

TEST_CASE("a target that is killed while it is locked or checkpointed leaves nothing") {
  SmallPool pool;
  const std::string all = pool.taken();
  const std::string actions = GENERATE("lock", "lock,checkpoint");
  const auto target = pool.start({"computes_until", pool.file("end"), "10"});
  REQUIRE(makes_progress(*target));
  pool.act(*target, actions);
  target->signal(SIGKILL);
  target->wait();
  CHECK(eventually(
      [&] { return pool.act(*target, "state") == "state: CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE\n"; }));
  CHECK(eventually([&] { return pool.taken() == all; }));
}

TEST_CASE("a session that an administrator ends while it is checkpointed is over") {
  SmallPool pool;
  const auto target = pool.start({"computes_until", pool.file("end"), "4"});
  REQUIRE(makes_progress(*target));
  pool.act(*target, "lock,checkpoint");
  const std::string number = std::to_string(pool.session(*target)["number"].get<int>());
  CHECK(run_to_end({program_path("pool-admin"), "--poold", "unix:" + pool->poold().admin_socket(), "kill",
                    number, "--reason", "enough"})
            .status == 0);
  CHECK(target->wait() != 0);
  CHECK(target->output().find("enough") != std::string::npos);
}

TEST_CASE("work that is not done in time leaves the program running") {
  SmallPool pool;
  const std::string scenario = GENERATE("busy_until", "long_kernel_until");
  const auto target = pool.start({scenario, pool.file("end" + scenario)});
  REQUIRE(target->await_output("working"));
  CHECK(pool.act(*target, "lock", "200") == "lock: CUDA_ERROR_NOT_READY, running\n");
  CHECK(pool.act(*target, "checkpoint") == "checkpoint: CUDA_ERROR_ILLEGAL_STATE, running\n");
  pool.touch("end" + scenario);
  CHECK(ends_well(*target));
}

TEST_CASE("a lock waits for work that needs the program") {
  SmallPool pool;
  const auto target = pool.start({"busy_until", pool.file("end")});
  REQUIRE(target->await_output("working"));
  const auto locker = pool.start({"change_state_of", std::to_string(target->pid()), "lock", "0"});
  CHECK(pool.await_lock_by(*locker)["state"] == "running");
  pool.touch("end");
  CHECK(locker->wait() == 0);
  CHECK(locker->await_output("lock: CUDA_SUCCESS, locked\n"));
  CHECK(eventually([&] {
    const Json dump = pool.ask({"dump", "1"});
    return dump["state"] == "locked" &&
           dump["worker"]["executor"]["waits_for"] == "poold to unlock the session";
  }));
  CHECK(pool.act(*target, "unlock") == "unlock: CUDA_SUCCESS, running\n");
  CHECK(ends_well(*target));
}

TEST_CASE("a caller that is killed while it waits for a lock takes it back") {
  SmallPool pool;
  const auto target = pool.start({"long_kernel_until", pool.file("end")});
  REQUIRE(target->await_output("working"));
  const auto locker = pool.start({"change_state_of", std::to_string(target->pid()), "lock", "0"});
  pool.await_lock_by(*locker);  // the lock below must come second
  CHECK(pool.act(*target, "lock", "50") ==
        "lock: CUDA_ERROR_ILLEGAL_STATE, running\n");  // another lock is pending
  locker->signal(SIGKILL);
  locker->wait();
  REQUIRE(pool->poold().await_log("action=lock result=600"));
  CHECK(pool.act(*target, "lock", "50") == "lock: CUDA_ERROR_NOT_READY, running\n");
  CHECK(pool.ask({"dump", "1"})["locked_by"] == "");
  pool.touch("end");
  CHECK(ends_well(*target));
}

TEST_CASE("processes without a session and of other tenants cannot be reached") {
  SharedPool pool({"memory = \"1GiB\"", "memory = \"1GiB\""});
  TemporaryFolder folder;
  const std::string end = folder.path() / "end";
  const auto target = pool.start(1, {"computes_until", end, "1"});
  REQUIRE(makes_progress(*target));
  const std::string nobody = "lock: CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE\n";
  CHECK(SmallPool::act(target->pid(), "lock", pool.of(2)) == nobody);
  for (const pid_t pid : {::getpid(), 1, 0, -1, 999'999'999})
    CHECK(SmallPool::act(pid, "lock", pool.of(1)) == nobody);
  CHECK(makes_progress(*target));
  CHECK(SmallPool::act(target->pid(), "lock", pool.of(1)) == "lock: CUDA_SUCCESS, locked\n");
  CHECK(SmallPool::act(target->pid(), "unlock", pool.of(2)) ==
        "unlock: CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE\n");
  CHECK(SmallPool::act(target->pid(), "unlock", pool.of(1)) == "unlock: CUDA_SUCCESS, running\n");
  std::ofstream(end) << ".";
  CHECK(ends_well(*target));
}

TEST_CASE("a program checkpoints itself") {
  Pool pool;
  for (const Environment& environment : {pool.through(), pool.directly()}) {
    const Finished app = run_patiently({driver_app(), "checkpoints_itself"}, environment);
    INFO(app.output);
    CHECK(app.status == 0);
  }
}

TEST_CASE("memory that a program maps by itself and arrays leave the GPU and are back at their places") {
  const bool dirty = GENERATE(false, true);
  SmallPool pool({}, dirty ? Environment{{"SOFTGPU_DIRTY_MEMORY", "1"}} : Environment{});
  const auto target = pool.start({"computes_on_all_kinds_until", pool.file("end")});
  REQUIRE(makes_progress(*target));
  const std::string beside = pool.taken();
  for (int i = 0; i < 2; ++i) {
    CHECK(pool.act(*target, "lock,checkpoint") ==
          "lock: CUDA_SUCCESS, locked\ncheckpoint: CUDA_SUCCESS, checkpointed\n");
    CHECK(std::atoi(pool.taken().c_str() + 5) >= std::atoi(beside.c_str() + 5) + 4);        // blocks of 8 MiB
    CHECK_FALSE(ends_well(*pool.start({"takes_what_is_offered", pool.file("end.name")})));  // not available
    {
      const auto other = pool.start({"computes_until", pool.file("other_end" + std::to_string(i)), "12"});
      REQUIRE(makes_progress(*other));
      CHECK(pool.act(*target, "restore") == "restore: CUDA_ERROR_OUT_OF_MEMORY, checkpointed\n");
      pool.touch("other_end" + std::to_string(i));
      CHECK(ends_well(*other));
    }
    REQUIRE(eventually([&] { return pool.act(*target, "restore") == "restore: CUDA_SUCCESS, locked\n"; }));
    CHECK(pool.act(*target, "unlock") == "unlock: CUDA_SUCCESS, running\n");
    CHECK(makes_progress(*target));
    CHECK(eventually([&] { return pool.taken() == beside; }));
  }
  // The memory is exported again, under the same name. A program that imports it prevents a further
  // checkpoint.
  const auto other = pool.start({"takes_what_is_offered", pool.file("end.name"), pool.file("other")});
  REQUIRE(other->await_output("working"));
  CHECK(pool.act(*target, "lock,checkpoint,unlock") ==
        "lock: CUDA_SUCCESS, locked\ncheckpoint: CUDA_ERROR_NOT_SUPPORTED, locked\nunlock: CUDA_SUCCESS, "
        "running\n");
  CHECK(pool->poold().await_log("memory shared with other programs"));
  CHECK(pool.act(*other, "lock,checkpoint,unlock") ==
        "lock: CUDA_SUCCESS, locked\ncheckpoint: CUDA_ERROR_NOT_SUPPORTED, locked\nunlock: CUDA_SUCCESS, "
        "running\n");
  pool.touch("other");
  CHECK(ends_well(*other));
  pool.touch("end");
  CHECK(ends_well(*target));
}

TEST_CASE("a program with a graph that copies from an array stays on the GPU") {
  SmallPool pool;
  const auto target = pool.start({"has_graph_of_array_until", pool.file("end")});
  REQUIRE(target->await_output("working"));
  CHECK(pool.act(*target, "lock,checkpoint,unlock") ==
        "lock: CUDA_SUCCESS, locked\ncheckpoint: CUDA_ERROR_NOT_SUPPORTED, locked\nunlock: CUDA_SUCCESS, "
        "running\n");
  CHECK(pool->poold().await_log("a graph that copies from or to an array"));
  pool.touch("end");
  CHECK(ends_well(*target));
}

TEST_CASE("host memory for checkpoints is bounded") {
  const std::string mebibytes = GENERATE("0", "64");
  SmallPool pool({"--host-memory-for-checkpoints-mib", mebibytes});
  const auto target = pool.start({"computes_until", pool.file("end"), "10"});
  REQUIRE(makes_progress(*target));
  const std::string expected = mebibytes == "0" ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_OUT_OF_MEMORY";
  CHECK(pool.act(*target, "lock,checkpoint,unlock") ==
        "lock: CUDA_SUCCESS, locked\ncheckpoint: " + expected + ", locked\nunlock: CUDA_SUCCESS, running\n");
  pool.touch("end");
  CHECK(ends_well(*target));
}

TEST_CASE("a program of two servers is checkpointed on both or on none") {
  SmallPool first, second;
  const Environment both{{"GPUPOOL", first->poold().url() + "," + second->poold().url()}};
  const auto target = first.start({"computes_until", first.file("end"), "8", "2"}, both);
  REQUIRE(makes_progress(*target));
  const auto act = [&](const std::string& actions) {
    return SmallPool::act(target->pid(), actions, first->through(both));
  };
  const std::string beside = second.taken();
  CHECK(act("lock,checkpoint") == "lock: CUDA_SUCCESS, locked\ncheckpoint: CUDA_SUCCESS, checkpointed\n");
  const auto other = second.start({"computes_until", second.file("other_end"), "10"});
  REQUIRE(makes_progress(*other));
  CHECK(act("restore") == "restore: CUDA_ERROR_OUT_OF_MEMORY, checkpointed\n");
  CHECK(first.session(*target)["state"] == "checkpointed");
  second.touch("other_end");
  CHECK(ends_well(*other));
  REQUIRE(eventually([&] { return act("restore") == "restore: CUDA_SUCCESS, locked\n"; }));
  CHECK(act("unlock") == "unlock: CUDA_SUCCESS, running\n");
  CHECK(second.taken() == beside);
  first.touch("end");
  CHECK(ends_well(*target));
}

TEST_CASE("the example takes a program out and brings it back") {
#ifndef CHECKPOINT_EXAMPLE
  report_skip("examples are built neither with sanitizers nor with -DGPUPOOL_EXAMPLES=OFF");
#else
  SmallPool pool;
  const auto target = pool.start({"computes_until", pool.file("end"), "4"});
  REQUIRE(makes_progress(*target));
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {CHECKPOINT_EXAMPLE, "--pid", std::to_string(target->pid())});
    return run_patiently(words, pool->through()).output;
  };
  const std::string state = run({"--get-state"});
  if (state.find("needs cuda.h of CUDA 12.8") != std::string::npos)
    return report_skip("nvcc's cuda.h has no checkpoint calls before CUDA 12.8");
  CHECK(state == "running\n");
  CHECK(run({"--toggle"}) == "checkpointed\n");
  CHECK(run({"--action", "unlock"}).find("checkpoint: unlock: ") == 0);
  CHECK(run({"--toggle"}) == "running\n");
  CHECK(run({"--action", "lock", "--timeout", "5000"}) == "locked\n");
  CHECK(run({"--action", "unlock"}) == "running\n");
  pool.touch("end");
  CHECK(ends_well(*target));
#endif
}
