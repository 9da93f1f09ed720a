// Tests the current context of a thread, and the streams that stand for CU_STREAM_PER_THREAD.
#include "client/session/context.h"

#include <thread>

#include "tests/client/fake_pool.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using wire::Command;

namespace {

uint64_t stream_of_thread(Context& context) {
  uint64_t stream = 0;
  REQUIRE(per_thread_stream(context, &stream) == CUDA_SUCCESS);
  return stream;
}

void in_thread(const std::function<void()>& body) {
  std::thread(body).join();
}

}  // namespace

TEST_CASE("context: is current in its thread only") {
  connected_worker();
  Context& context = current_primary();
  CHECK(current_context() == &context);
  CHECK(current_session() == context.session);
  Context* elsewhere = &context;
  CUresult error = CUDA_SUCCESS;
  in_thread([&] { elsewhere = current_context(&error); });
  CHECK(elsewhere == nullptr);
  CHECK(error == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("context: no context and a destroyed one are different errors") {
  connected_worker();
  Context& context = current_primary();
  auto object = std::make_unique<Context>();
  object->device = context.device;
  const uint64_t handle = context.session->mint(Kind::context, std::move(object));
  auto& stack = thread_state().contexts;
  CUresult error = CUDA_SUCCESS;
  stack.push_back(handle);
  CHECK(current_context(&error) == handles().find_as<Context>(Kind::context, handle));
  handles().retire(handle);
  CHECK(current_context(&error) == nullptr);
  CHECK(error == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  stack.back() = 0;
  CHECK(current_context(&error) == nullptr);
  CHECK(error == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(current_session() == nullptr);
  stack.pop_back();
  CHECK(current_context() == &context);
}

TEST_CASE("context: each thread has one stream of its own, which ends with the thread") {
  FakeWorker& worker = connected_worker();
  Context& context = current_primary();
  const uint64_t own = stream_of_thread(context);
  CHECK(stream_of_thread(context) == own);
  CHECK(handles().find(Kind::stream, own));
  uint64_t other = 0;
  in_thread([&] {
    other = stream_of_thread(context);
    CHECK(handles().find(Kind::stream, other));
  });
  CHECK(other != own);
  CHECK_FALSE(handles().find(Kind::stream, other));
  const ReceivedCommand destroyed = worker.await_command(rows::cuStreamDestroy_v2::kId);
  CHECK(destroyed.as<uint64_t>() == other);
  CHECK(destroyed.header.context == context.handle);
  CHECK(handles().find(Kind::stream, own));
}

TEST_CASE("context: a reset replaces the threads' streams and does not destroy the old ones again") {
  FakeWorker& worker = connected_worker();
  Context& context = current_primary();
  uint64_t before = 0, after = 0;
  in_thread([&] {
    before = stream_of_thread(context);
    ++context.epoch;
    after = stream_of_thread(context);
  });
  CHECK(before != after);
  CHECK(worker.await_command(rows::cuStreamDestroy_v2::kId).as<uint64_t>() == after);
  wire::Buffer reply;
  REQUIRE(context.session->call(Command::await_barriers, nullptr, wire::SynchronizeStream{}, reply) ==
          CUDA_SUCCESS);
  size_t destroyed = 0;
  for (const auto& command : worker.received())
    destroyed += command.header.id == rows::cuStreamDestroy_v2::kId;
  CHECK(destroyed == 1);
}
