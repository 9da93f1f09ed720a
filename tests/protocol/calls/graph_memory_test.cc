#include "protocol/calls/graph_memory.h"

#include "tests/support/catch.h"

using namespace gpupool;
using cuda::graph_memory::Shared;

namespace {

constexpr uint64_t kAddress = 0x1000, kBytes = 4096, kContext = 7, kOther = 8;

class Memory final : public cuda::GraphMemory {
 public:
  Memory(uint64_t context, int* freed) : GraphMemory(kAddress, kBytes, 0, context), freed_(freed) {}
  ~Memory() override {
    if (forget()) ++*freed_;
  }

 private:
  int* const freed_;
};

Shared make(uint64_t context, int* freed) {
  auto memory = std::make_shared<Memory>(context, freed);
  cuda::graph_memory::add(memory);
  return memory;
}

uint64_t in_use() {
  cuuint64_t bytes = 0;
  CHECK(cuda::graph_memory::attribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &bytes) == CUDA_SUCCESS);
  return bytes;
}

}  // namespace

TEST_CASE("graph memory is freed with its context and its address can be reused") {
  int freed = 0;
  Shared old = make(kContext, &freed);
  REQUIRE(cuda::graph_memory::check_launch({old}, false) == CUDA_SUCCESS);
  cuda::graph_memory::commit_launch({old}, {});
  cuda::graph_memory::forget_context(kOther);
  CHECK(cuda::graph_memory::find(kAddress) == old);
  cuda::graph_memory::forget_context(kContext);
  CHECK(in_use() == 0);
  Shared gone;
  CHECK(cuda::graph_memory::free(kAddress, &gone) ==
        std::nullopt);  // not a memory node's any more: cuMemFree handles it
  CHECK(cuda::graph_memory::check_launch({old}, true) == CUDA_ERROR_INVALID_VALUE);
  const Shared next = make(kOther, &freed);
  old.reset();
  CHECK(freed == 0);
  CHECK(cuda::graph_memory::find(kAddress) == next);
}

TEST_CASE("a launch that frees the memory of the previous launch ends it without a lock") {
  int freed = 0;
  {
    const Shared memory = make(kContext, &freed);
    cuda::graph_memory::commit_launch({memory}, {});
  }
  CHECK(freed == 0);  // still owned by the program
  const Shared same_address = make(kContext, &freed);
  cuda::graph_memory::commit_launch({same_address}, {});
  CHECK(cuda::graph_memory::find(kAddress) == same_address);
  cuda::graph_memory::commit_launch({}, {same_address});
}
