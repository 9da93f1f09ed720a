// Tests that the client prints which quota refused a request, when the program gets the error, and that a
// server can make it print neither much nor control characters.
#include "client/session/quota_refusals.h"

#include "client/process/process.h"
#include "protocol/driver/exports.h"
#include "tests/client/child.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/fake_worker.h"
#include "tests/support/hostile_text.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using Catch::Matchers::ContainsSubstring;
using wire::Command;

namespace {

constexpr wire::QuotaRefusal kRefusal{
    .asked = 64u << 20, .used = 100u << 20, .limit = 128u << 20, .device = 0, .unit = wire::kRefusedBytes};

std::string message(const std::string& name, const wire::QuotaRefusal& refusal = kRefusal) {
  return bytes_of(refusal) + name;
}

bool note(QuotaRefusals& refusals, const std::string& message) {
  return refusals.note(std::as_bytes(std::span(message)), "tcp://gpu-1:9700");
}

// Calls cuMemAlloc `times` times in a child, with a worker that refuses it and has sent `refusals` before.
ChildResult allocate(int times, const std::vector<std::string>& refusals) {
  const Environment plain{{"GPUPOOL_TRANSPORT", "tcp"}, {"GPUPOOL_SHM", "0"}, {"GPUPOOL_LOG", ""}};
  return in_child(plain, [&] {
    FakeWorker& worker = *new FakeWorker;
    worker.on(Command::map_memory, [&](const ReceivedCommand& command) {
      for (const std::string& refusal : refusals) worker.send(wire::MessageKind::quota_refusal, 0, refusal);
      worker.reply(command.header.sequence, {}, CUDA_ERROR_OUT_OF_MEMORY);
    });
    ::setenv("GPUPOOL", worker.url().c_str(), 1);
    if (initialise() != CUDA_SUCCESS) return std::string("cannot connect");
    if (!worker.hellos().at(0).takes_quota_refusals) return std::string("takes no refusals");
    CUcontext context = nullptr;
    if (::cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || ::cuCtxSetCurrent(context) != CUDA_SUCCESS)
      return std::string("no context");
    std::string results;
    for (int i = 0; i < times; ++i) {
      CUdeviceptr address = 0;
      results += std::to_string(::cuMemAlloc_v2(&address, 64u << 20)) + " ";
    }
    return results;
  });
}

size_t count(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++times;
  return times;
}

}  // namespace

TEST_CASE("the call that a quota refuses prints the quota once") {
  const auto got = allocate(3, {message("memory")});
  CHECK(got.result == "2 2 2 ");
  CHECK_THAT(got.errors, ContainsSubstring("gpupool: GPU 0 of tcp://127.0.0.1:"));
  CHECK_THAT(got.errors,
             ContainsSubstring(": the tenant's quota 'memory' refused 64.0 MiB (CUDA_ERROR_OUT_OF_MEMORY): "
                               "100 MiB of 128 MiB in use; use less, end other programs of "
                               "the tenant, or ask an operator to raise the quota."));
  CHECK(count(got.errors, "refused") == 1);
}

TEST_CASE("without a refusal by a quota nothing is printed about one") {
  const auto got = allocate(1, {});
  CHECK(got.result == "2 ");
  CHECK(count(got.errors, "quota") == 0);
}

TEST_CASE("a server's refusals are printed without control characters and not without end") {
  std::vector<std::string> refusals{message(kHostileText)};
  for (int i = 0; i < 200; ++i)
    refusals.push_back(message(std::to_string(i) + std::string(wire::kLongestQuotaName - 3, 'x')));
  const auto got = allocate(3, refusals);
  CHECK(got.result == "2 2 2 ");
  CHECK(count(got.errors, "refused") == QuotaRefusals::kMostNames);
  CHECK(is_harmless(got.errors));
  CHECK(got.errors.size() < 16 * 1024);
}

TEST_CASE("a malformed refusal ends the session") {
  for (const std::string& malformed :
       {message(""), message(std::string(wire::kLongestQuotaName + 1, 'x')), std::string("short")}) {
    const auto got = allocate(1, {malformed});
    CHECK(got.result == std::to_string(CUDA_ERROR_DEVICE_UNAVAILABLE) + " ");
    CHECK_THAT(got.errors, ContainsSubstring("unknown or malformed message of kind 8"));
  }
}

TEST_CASE("a refusal is forgotten when the call succeeds after it has freed memory") {
  const auto got = in_child({}, [] {
    QuotaRefusals refusals;
    std::string good;
    good += note(refusals, message("memory")) ? "kept " : "";
    refusals.forget();
    refusals.print();
    good += note(refusals, message("streams", {.asked = 1, .used = 3, .limit = 3})) ? "kept" : "";
    refusals.print();
    return good;
  });
  CHECK(got.result == "kept kept");
  CHECK(count(got.errors, "memory'") == 0);
  CHECK_THAT(got.errors,
             ContainsSubstring("gpupool: tcp://gpu-1:9700: the tenant's quota 'streams' refused 1 "
                               "(CUDA_ERROR_OUT_OF_MEMORY): 3 of 3 in use"));
}
