// Tests of the text and JSON of a session's dump.
#include "scheduler/admin/dump.h"

#include "tests/support/catch.h"

using namespace gpupool::admin;
using gpupool::Json;

namespace {

SessionDump stuck_session() {
  SessionDump dump;
  dump.set_session(3);
  dump.set_tenant("research");
  dump.set_program("train.py");
  dump.set_host("node");
  dump.set_pid(11);
  dump.set_worker_pid(22);
  dump.set_state("running");
  GpuTurn& turn = *dump.add_turns();
  turn.set_gpu(1);
  turn.set_turn("closed");
  turn.set_waits(true);
  WorkerDump& worker = *dump.mutable_worker();
  worker.mutable_executor()->set_command("load_module");
  worker.mutable_executor()->set_context(0x10);
  worker.mutable_executor()->set_driver_function("cuModuleLoadDataEx");
  worker.mutable_executor()->set_age_ms(12'300);
  worker.set_received(7);
  worker.set_executed(4);
  worker.set_backlog(30);
  KeptCommand& kept = *worker.add_kept();
  kept.set_command("cuMemsetD8Async");
  kept.set_stream(0);
  kept.set_waits_for("its stream's gate");
  worker.set_closed_gates(1);
  ClosedGate& gate = *worker.add_gates();
  gate.set_stream(0x20);
  gate.set_reason("a host function");
  gate.set_age_ms(500);
  worker.add_busy_locks("device memory");
  return dump;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a dump shows the executor's command and why streams are blocked") {
  const std::string text = dump_text(stuck_session(), 0);
  INFO(text);
  CHECK(
      has(text, "session 3 of tenant research: train.py, process 11 on node; worker process 22; running\n"));
  CHECK(has(text, "turn on GPU 1: closed, the session waits for it\n"));
  CHECK(has(
      text,
      "executor: executing load_module for 12.3 s, context 0x10, inside the driver: cuModuleLoadDataEx\n"));
  CHECK(has(text, "commands: 7 received, 4 executed, 30 in the backlog"));
  CHECK(has(text, "locks in use: device memory\n"));
  CHECK(has(text, "backlog: 30, the first 1:\n"));
  CHECK(has(text, "cuMemsetD8Async  legacy"));
  CHECK(has(text, "0x20    0x0      a host function  0.5 s"));
  CHECK_FALSE(has(text, "copies under way"));
  const Json json = json_of(stuck_session());
  CHECK(json["worker"]["executor"]["stream"].is_null());
  CHECK(json["worker"]["kept"][0]["stream"] == "0x0");
  CHECK(json["worker"]["gates"][0]["stream"] == "0x20");
  CHECK(json["worker"]["gates"][0]["reason"] == "a host function");
}

TEST_CASE("a dump explains a missing worker part") {
  SessionDump dump = stuck_session();
  dump.clear_worker();
  dump.set_no_answer_because("the worker did not answer within 2 s");
  dump.set_locked_by("checkpointer");
  dump.set_state_change("lock");
  const std::string text = dump_text(dump, 80);
  CHECK(has(text, "no answer: the worker did not answer within 2 s\n"));
  CHECK(has(text, "locked (or lock requested) by checkpointer\n"));
  CHECK(has(text, "requested: lock, not completed yet\n"));
  CHECK(json_of(dump)["worker"].is_null());
}
