// Tests host functions against a fake worker: when they run, in which order, and when they do not.
#include "client/streams/host_function.h"

#include <chrono>
#include <condition_variable>

#include "tests/client/fake_pool.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using wire::Command;

namespace {

// Records in which order functions ran.
struct Log {
  std::mutex mutex;
  std::string text;
  std::string read() {
    const std::lock_guard lock(mutex);
    return text;
  }
};
struct Step {
  Log* log;
  char name;
  static void run(void* data) {
    auto* const step = static_cast<Step*>(data);
    const std::lock_guard lock(step->log->mutex);
    step->log->text += step->name;
  }
};

void announce(FakeWorker& worker, const ReceivedCommand& command, CUresult result = CUDA_SUCCESS) {
  worker.send(wire::MessageKind::host_callback, command.header.sequence,
              bytes_of(result == CUDA_SUCCESS ? command.as<wire::HostFunction>().callback : uint64_t{0}),
              result);
}

}  // namespace

TEST_CASE("host function: runs when the server announces it, in the order of the messages") {
  FakeWorker& worker = connected_worker();
  (void)current_primary();
  Log log;
  Step first{&log, 'a'}, second{&log, 'b'};
  CHECK(cuLaunchHostFunc(nullptr, Step::run, &first) == CUDA_SUCCESS);
  CHECK(cuLaunchHostFunc(nullptr, Step::run, &second) == CUDA_SUCCESS);
  const ReceivedCommand one = worker.await_command(Command::host_function, 0);
  const ReceivedCommand two = worker.await_command(Command::host_function, 1);
  CHECK(log.read().empty());
  CHECK(host_functions_pending());
  announce(worker, two);
  announce(worker, one);
  CHECK(worker.await_command(Command::host_function_done, 0).as<wire::HostFunctionDone>().callback ==
        two.as<wire::HostFunction>().callback);
  CHECK(worker.await_command(Command::host_function_done, 1).as<wire::HostFunctionDone>().callback ==
        one.as<wire::HostFunction>().callback);
  CHECK(log.read() == "ba");
  CHECK(eventually([] { return !host_functions_pending(); }));
}

TEST_CASE("host function: runs once however often it is announced, and unknown ones are ignored") {
  FakeWorker& worker = connected_worker();
  (void)current_primary();
  Log log;
  Step step{&log, 'a'}, last{&log, 'z'};
  CHECK(cuLaunchHostFunc(nullptr, Step::run, &step) == CUDA_SUCCESS);
  CHECK(cuLaunchHostFunc(nullptr, Step::run, &last) == CUDA_SUCCESS);
  const ReceivedCommand command = worker.await_command(Command::host_function, 0);
  announce(worker, command);
  announce(worker, command);
  worker.send(wire::MessageKind::host_callback, command.header.sequence, bytes_of(~uint64_t{0}));
  announce(worker, worker.await_command(Command::host_function, 1));
  CHECK(eventually([&] { return log.read().ends_with('z'); }));
  CHECK(log.read() == "az");
}

TEST_CASE("host function: is not run if its stream has failed") {
  FakeWorker& worker = connected_worker();
  (void)current_primary();
  Log log;
  Step failed{&log, 'a'}, last{&log, 'z'};
  CHECK(cuLaunchHostFunc(nullptr, Step::run, &failed) == CUDA_SUCCESS);
  announce(worker, worker.await_command(Command::host_function, 0), CUDA_ERROR_LAUNCH_FAILED);
  CHECK(cuLaunchHostFunc(nullptr, Step::run, &last) == CUDA_SUCCESS);
  announce(worker, worker.await_command(Command::host_function, 1));
  CHECK(eventually([&] { return log.read().ends_with('z'); }));
  CHECK(log.read() == "z");
  CHECK(eventually([] { return !host_functions_pending(); }));
}

TEST_CASE("host function: a missing function is an error and sends nothing") {
  FakeWorker& worker = connected_worker();
  (void)current_primary();
  CHECK(cuLaunchHostFunc(nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(worker.received(Command::host_function).empty());
}
