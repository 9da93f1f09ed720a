// Tests that kernels' local memory is charged to the tenant: kernels that need much of it, and limits of a
// context.
#include "server/worker/graphs/graphs.h"
#include "tests/server/worker/graph_fixture.h"
#include "tests/server/worker/limited_session.h"

using namespace gpupool;
using namespace gpupool::worker::test;

namespace {

constexpr uint64_t kModule = make_handle(Kind::module, 1, 301);
constexpr uint64_t kDeep = make_handle(Kind::function, 1, 310), kDeeper = make_handle(Kind::function, 1, 311),
                   kFlat = make_handle(Kind::function, 1, 312);
constexpr uint64_t kSecond = make_handle(Kind::context, 1, 2);

// Pages for the 200 threads that the fake driver's device can hold.
constexpr uint64_t pages_of(uint64_t bytes_per_thread) {
  return (200 * bytes_per_thread + kPage - 1) / kPage;
}

constexpr uint64_t kDeepBytes = 2048, kDeeperBytes = 5000;

struct Kernels : Limited {
  explicit Kernels(uint64_t pages)
      : Limited(pages * kPage, [](FakeDriver& fake) {
          fake.local_bytes = {{"deep", kDeepBytes}, {"deeper", kDeeperBytes}, {"flat", 0}};
        }) {
    REQUIRE(load(kModule, "") == CUDA_SUCCESS);
    REQUIRE(get_function(kDeep, kModule, "deep") == CUDA_SUCCESS);
    REQUIRE(get_function(kDeeper, kModule, "deeper") == CUDA_SUCCESS);
    REQUIRE(get_function(kFlat, kModule, "flat") == CUDA_SUCCESS);
  }
  CUresult launch(uint64_t function, uint64_t context = kContext, uint32_t flags = 0) {
    return client->result(
        client->send(Command::launch, client->launch_body(function, 0, {}, flags), true, context));
  }
  uint64_t pages() { return used() / kPage; }
  size_t launches() {
    return client->fake.locked([&] { return client->fake.launches.size(); });
  }
};

}  // namespace

TEST_CASE("local memory is charged before the launch that needs it and until the context ends") {
  Kernels tenant(pages_of(kDeeperBytes));
  CHECK(tenant.launch(kFlat) == CUDA_SUCCESS);
  CHECK(tenant.pages() == 0);
  CHECK(tenant.launch(kDeep) == CUDA_SUCCESS);
  CHECK(tenant.pages() == pages_of(kDeepBytes));
  CHECK(tenant.launch(kDeeper, kContext, wire::kLaunchCooperative) == CUDA_SUCCESS);
  CHECK(tenant.launch(kDeep) == CUDA_SUCCESS);
  CHECK(tenant.pages() == pages_of(kDeeperBytes));
  CHECK(tenant.map(0, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.client->ask("cuModuleUnload", bytes_of(kModule)) == CUDA_SUCCESS);
  CHECK(tenant.pages() == pages_of(kDeeperBytes));  // the device keeps it
  tenant.client->send(Command::release_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0}), false,
                      0);
  tenant.client->retain();
  CHECK(tenant.map(0, 1) == CUDA_SUCCESS);
  CHECK(tenant.pages() == 1);
}

TEST_CASE("a launch whose local memory the quota has no room for does not reach the device") {
  Kernels tenant(pages_of(kDeeperBytes) - 1);
  CHECK(tenant.launch(kDeeper) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.launches() == 0);
  CHECK(tenant.used() == 0);
  CHECK(tenant.refused() == 1);
  CHECK(tenant.launch(kDeep) == CUDA_SUCCESS);
  CHECK(tenant.launch(kDeeper) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.pages() == pages_of(kDeepBytes));
  REQUIRE(tenant.accounts.set("t", {.each = {.memory_bytes = pages_of(kDeeperBytes) * kPage}}));
  CHECK(tenant.launch(kDeeper) == CUDA_SUCCESS);
  CHECK(tenant.launches() == 2);
}

TEST_CASE("does not charge a launch that the device has no memory for") {
  Kernels tenant(100);
  const auto refuse = [&] {
    tenant.client->fake.locked([&] { tenant.client->fake.next_kernel_launch = CUDA_ERROR_OUT_OF_MEMORY; });
  };
  refuse();
  CHECK(tenant.launch(kDeep) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.used() == 0);
  CHECK((*tenant.page)->gpus[0].memory_peak == 0);
  CHECK(tenant.launch(kDeep) == CUDA_SUCCESS);
  refuse();
  CHECK(tenant.launch(kDeeper) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.pages() == pages_of(kDeepBytes));
  CHECK(tenant.launch(kDeeper) == CUDA_SUCCESS);
  CHECK(tenant.pages() == pages_of(kDeeperBytes));
}

TEST_CASE("does not launch a kernel whose local memory the device does not report and asks again") {
  Kernels tenant(pages_of(kDeepBytes));
  tenant.client->fake.locked([&] { tenant.client->fake.next_attribute = CUDA_ERROR_LAUNCH_FAILED; });
  CHECK(tenant.launch(kDeeper) == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(tenant.launch(kDeeper) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.launch(kDeep) == CUDA_SUCCESS);
}

TEST_CASE("each context has local memory of its own") {
  Kernels tenant(2 * pages_of(kDeepBytes));
  CHECK(tenant.launch(kDeep) == CUDA_SUCCESS);
  CHECK(tenant.client->ask(Command::create_context, bytes_of(wire::CreateContext{kSecond, 0, 0})) ==
        CUDA_SUCCESS);
  CHECK(tenant.pages() == pages_of(kDeepBytes));
  constexpr uint64_t kOtherModule = make_handle(Kind::module, 1, 303),
                     kOtherDeep = make_handle(Kind::function, 1, 315),
                     kOtherDeeper = make_handle(Kind::function, 1, 316);
  REQUIRE(tenant.load(kOtherModule, "", kSecond) == CUDA_SUCCESS);
  REQUIRE(tenant.get_function(kOtherDeep, kOtherModule, "deep", kSecond) == CUDA_SUCCESS);
  REQUIRE(tenant.get_function(kOtherDeeper, kOtherModule, "deeper", kSecond) == CUDA_SUCCESS);
  CHECK(tenant.launch(kOtherDeep, kSecond) == CUDA_SUCCESS);
  CHECK(tenant.pages() == 2 * pages_of(kDeepBytes));
  CHECK(tenant.launch(kOtherDeeper, kSecond) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.client->ask(Command::destroy_context, bytes_of(wire::DestroyContext{kSecond})) ==
        CUDA_SUCCESS);
  CHECK(tenant.pages() == pages_of(kDeepBytes));
}

TEST_CASE("kernels in graphs need local memory as launched ones do") {
  Kernels tenant(pages_of(kDeepBytes));
  const auto instantiate = [&](uint64_t kernel) {
    tenant.client->send(Command::graph_nodes,
                        Nodes().add(NodeKind::kernel, tenant.client->launch_body(kernel, 0, {})).of(kGraph));
    return tenant.client->ask(Command::instantiate_graph,
                              bytes_of(wire::InstantiateGraph{kGraph, kExecutable, 0}));
  };
  CHECK(instantiate(kDeeper) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.used() == 0);
  CHECK(instantiate(kFlat) == CUDA_SUCCESS);
  CHECK(tenant.client->ask(Command::set_graph_node,
                           set_node(0, NodeKind::kernel, tenant.client->launch_body(kDeeper, 0, {}))) ==
        CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("charges an executable graph for its nodes until it is destroyed") {
  static_assert(worker::kGraphNodeBytes == kPage);
  Kernels tenant(3);
  const auto instantiate = [&](int kernels) {
    Nodes nodes;
    nodes.add(NodeKind::empty, {});
    for (int i = 0; i < kernels; ++i) nodes.add(NodeKind::kernel, tenant.client->launch_body(kFlat, 0, {}));
    tenant.client->send(Command::graph_nodes, nodes.of(kGraph));
    return tenant.client->ask(Command::instantiate_graph,
                              bytes_of(wire::InstantiateGraph{kGraph, kExecutable, 0}));
  };
  CHECK(instantiate(4) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.used() == 0);
  CHECK(instantiate(3) == CUDA_SUCCESS);
  CHECK(tenant.pages() == 3);
  CHECK(tenant.map(0, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.client->ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kExecutable})) ==
        CUDA_SUCCESS);
  CHECK(tenant.used() == 0);
  CHECK(instantiate(1) == CUDA_SUCCESS);
  CHECK(tenant.pages() == 1);
  tenant.client->send(Command::release_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0}), false,
                      0);
  tenant.client->retain();
  CHECK(tenant.map(0, 3) == CUDA_SUCCESS);
}

TEST_CASE("the stack limit is charged as local memory is and not given back by lowering it") {
  Kernels tenant(pages_of(kDeepBytes));
  CHECK(tenant.set_limit(CU_LIMIT_STACK_SIZE, kDeeperBytes) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.set_limit(CU_LIMIT_STACK_SIZE, ~uint64_t{0}) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.client->fake.locked([&] { return tenant.client->fake.limits[CU_LIMIT_STACK_SIZE]; }) == 1024);
  CHECK(tenant.used() == 0);
  CHECK(tenant.set_limit(CU_LIMIT_STACK_SIZE, 77) == CUDA_ERROR_INVALID_VALUE);
  CHECK(tenant.set_limit(CU_LIMIT_STACK_SIZE, kDeepBytes) == CUDA_SUCCESS);
  CHECK(tenant.pages() == pages_of(kDeepBytes));
  CHECK(tenant.launch(kDeep) == CUDA_SUCCESS);  // its memory is already charged
  CHECK(tenant.set_limit(CU_LIMIT_STACK_SIZE, 512) == CUDA_SUCCESS);
  CHECK(tenant.pages() == pages_of(kDeepBytes));
  CHECK(tenant.launch(kDeep) == CUDA_SUCCESS);
  CHECK(tenant.launch(kDeeper) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("a function belongs to its module's context whichever it was asked for in") {
  Kernels tenant(2 * pages_of(kDeepBytes));
  constexpr uint64_t kStray = make_handle(Kind::function, 1, 314);
  CHECK(tenant.client->ask(Command::create_context, bytes_of(wire::CreateContext{kSecond, 0, 0})) ==
        CUDA_SUCCESS);
  CHECK(tenant.get_function(kStray, kModule, "deep", kSecond) == CUDA_SUCCESS);
  SECTION("its local memory is that context's") {
    CHECK(tenant.launch(kStray, kSecond) == CUDA_SUCCESS);
    tenant.client->send(
        Command::graph_nodes,
        Nodes().add(NodeKind::kernel, tenant.client->launch_body(kStray, 0, {}), {}, kSecond).of(kGraph));
    CHECK(tenant.client->ask(Command::destroy_context, bytes_of(wire::DestroyContext{kSecond})) ==
          CUDA_SUCCESS);
    CHECK(tenant.pages() == pages_of(kDeepBytes));
  }
  SECTION("it ends with that context") {
    tenant.client->send(Command::release_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0}),
                        false, 0);
    CHECK(tenant.launch(kStray, kSecond) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(tenant.launches() == 0);
  }
}

#if CUDA_VERSION >= 12040
TEST_CASE("a kernel that can launch others needs what the largest of its module needs") {
  Kernels tenant(pages_of(kDeepBytes));
  constexpr uint64_t kParents = make_handle(Kind::module, 1, 302),
                     kParent = make_handle(Kind::function, 1, 313);
  REQUIRE(tenant.load(kParents,
                      ".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 p, .param .b64 s);") ==
          CUDA_SUCCESS);
  REQUIRE(tenant.get_function(kParent, kParents, "flat") == CUDA_SUCCESS);
  CHECK(tenant.launch(kFlat) == CUDA_SUCCESS);
  CHECK(tenant.launch(kParent) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(tenant.accounts.set("t", {.each = {.memory_bytes = pages_of(kDeeperBytes) * kPage}}));
  CHECK(tenant.launch(kParent) == CUDA_SUCCESS);
  CHECK(tenant.pages() == pages_of(kDeeperBytes));
}
#endif

TEST_CASE("limits for launches by kernels are charged or refused where a quota holds") {
  Kernels tenant(8);
  CHECK(tenant.set_limit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 13) ==
        CUDA_ERROR_OUT_OF_MEMORY);  // 40 KiB each
  CHECK(tenant.set_limit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 12) == CUDA_SUCCESS);
  CHECK(tenant.used() == 12 * 40 * 1024);
  CHECK(tenant.set_limit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, ~uint64_t{0}) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.set_limit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.set_limit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 0) == CUDA_SUCCESS);
  CHECK(tenant.set_limit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 128) == CUDA_SUCCESS);
  CHECK(tenant.used() == 12 * 40 * 1024);
  REQUIRE(tenant.accounts.set("t", {}));
  CHECK(tenant.set_limit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 4) == CUDA_SUCCESS);
}

TEST_CASE("only the first launch of a kernel asks the device what it needs") {
  Kernels tenant(100);
  CHECK(tenant.launch(kDeep) == CUDA_SUCCESS);
  CHECK(tenant.launch(kDeeper) == CUDA_SUCCESS);
  const auto questions = [&] {
    return tenant.client->fake.locked([&] { return tenant.client->fake.attribute_questions; });
  };
  const int before = questions();
  for (int i = 0; i < 10; ++i) CHECK(tenant.launch(i % 2 == 0 ? kDeep : kDeeper) == CUDA_SUCCESS);
  CHECK(questions() == before);
}
