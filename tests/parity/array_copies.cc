// Copies between arrays and each kind of memory, alone, in batches and as nodes of graphs.
#define __CUDA_API_VERSION_INTERNAL  // declares every version under its own name
#include <cuda.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/parity/show.h"

namespace parity {
namespace {

constexpr size_t kWidth = 300, kHeight = 50, kDepth = 4, kBytes = kWidth * kHeight * kDepth;

struct Memories {
  std::vector<unsigned char> pageable = std::vector<unsigned char>(kBytes);
  void *pinned = nullptr, *mapped = nullptr;
  CUdeviceptr managed = 0, device = 0;
  Memories() {
    SHOW(cuMemHostAlloc(&pinned, kBytes, 0));
    SHOW(cuMemHostAlloc(&mapped, kBytes, CU_MEMHOSTALLOC_DEVICEMAP));
    SHOW(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL));
    SHOW(cuMemAlloc_v2(&device, kBytes));
  }
  ~Memories() {
    SHOW(cuMemFreeHost(pinned));
    SHOW(cuMemFreeHost(mapped));
    SHOW(cuMemFree_v2(managed));
    SHOW(cuMemFree_v2(device));
  }
  std::vector<std::pair<const char*, unsigned char*>> of_host() {
    return {{"pageable", pageable.data()},
            {"pinned", static_cast<unsigned char*>(pinned)},
            {"mapped", static_cast<unsigned char*>(mapped)},
            {"managed", reinterpret_cast<unsigned char*>(managed)}};
  }
};

unsigned sum(const unsigned char* bytes) {
  return std::accumulate(bytes, bytes + kBytes, 0u);
}

// The sum of kBytes bytes of which all but the last have the same value.
unsigned sum_of(unsigned char value, unsigned char last) {
  return static_cast<unsigned>(value * (kBytes - 1) + last);
}

CUDA_MEMCPY3D box() {
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = kWidth;
  copy.Height = kHeight;
  copy.Depth = kDepth;
  copy.srcPitch = copy.dstPitch = kWidth;
  copy.srcHeight = copy.dstHeight = kHeight;
  return copy;
}
CUDA_MEMCPY3D to_array(CUarray array, CUmemorytype type, void* memory) {
  CUDA_MEMCPY3D copy = box();
  copy.srcMemoryType = type;
  if (type == CU_MEMORYTYPE_HOST)
    copy.srcHost = memory;
  else
    copy.srcDevice = reinterpret_cast<CUdeviceptr>(memory);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  return copy;
}
CUDA_MEMCPY3D from_array(CUarray array, CUmemorytype type, void* memory) {
  CUDA_MEMCPY3D copy = box();
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.dstMemoryType = type;
  if (type == CU_MEMORYTYPE_HOST)
    copy.dstHost = memory;
  else
    copy.dstDevice = reinterpret_cast<CUdeviceptr>(memory);
  return copy;
}

// Two rounds, so that the program uses memory after the device did, and the device after the program.
void each_memory(Memories& memories, CUarray array, CUstream stream) {
  for (const CUmemorytype type : {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_DEVICE}) {
    for (const auto& [what, memory] : memories.of_host()) {
      for (unsigned char round = 1; round < 3; ++round) {
        std::memset(memory, round, kBytes);
        memory[kBytes - 1] = 7;
        CUDA_MEMCPY3D up = to_array(array, type, memory),
                      down = from_array(array, CU_MEMORYTYPE_HOST, memories.pageable.data());
        const CUresult sent = cuMemcpy3DAsync_v2(&up, stream), waited = cuStreamSynchronize(stream);
        std::printf("%s to array, type %d -> %s, %s\n", what, type, name_of(sent), name_of(waited));
        memory[0] = 9;  // changed by the program after the copy
        memory[kBytes / 2] = 9;
        if (sent != CUDA_SUCCESS) continue;
        std::fill(memories.pageable.begin(), memories.pageable.end(), static_cast<unsigned char>(0));
        REQUIRE(CUDA_SUCCESS, cuMemcpy3D_v2(&down));
        EXPECT(sum(memories.pageable.data()) == sum_of(round, 7));
        up = from_array(array, type, memory);
        const CUresult got = cuMemcpy3DAsync_v2(&up, stream), then = cuStreamSynchronize(stream);
        std::printf("array to %s, type %d -> %s, %s: %u\n", what, type, name_of(got), name_of(then),
                    sum(memory));
        EXPECT(got != CUDA_SUCCESS || sum(memory) == sum_of(round, 7));
      }
    }
  }
  // A part of the memory, and more than there is.
  CUDA_MEMCPY3D copy = to_array(array, CU_MEMORYTYPE_HOST, reinterpret_cast<void*>(memories.managed));
  copy.srcHeight = 2 * kHeight;
  SHOW(cuMemcpy3D_v2(&copy));
  copy.srcHeight = kHeight;
  copy.srcXInBytes = 100;
  copy.WidthInBytes = 200;
  copy.Depth = 1;
  SHOW(cuMemcpy3D_v2(&copy));
  SHOW(cuMemcpyHtoA_v2(array, 0, nullptr, 10));
  SHOW(cuMemcpyAtoH_v2(nullptr, array, 0, 10));
}

void batch(Memories& memories, CUstream stream) {
  const auto of_host = memories.of_host();
  std::vector<CUdeviceptr> targets, sources;
  std::vector<size_t> sizes;
  for (size_t i = 0; i < of_host.size(); ++i) {
    std::memset(of_host[i].second, static_cast<int>(10 + i), kBytes);
    targets.push_back(memories.device + i * 1000);
    sources.push_back(reinterpret_cast<CUdeviceptr>(of_host[i].second));
    sizes.push_back(1000);
  }
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first = 0;
  for (int round = 0; round < 2; ++round) {
    REQUIRE(CUDA_SUCCESS, cuMemcpyBatchAsync_v2(targets.data(), sources.data(), sizes.data(), targets.size(),
                                                &attributes, &first, 1, stream));
    SHOW(cuStreamSynchronize(stream));
    for (size_t i = 0; i < of_host.size(); ++i)
      EXPECT(of_host[i].second[5] == 10 + i);  // copied back by the second batch
    for (const auto& memory : of_host) std::memset(memory.second, 99, 500);
    targets.swap(sources);
  }
  CUDA_MEMCPY3D_BATCH_OP boxes[2]{};
  for (CUDA_MEMCPY3D_BATCH_OP& one : boxes) {
    one.src.type = one.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    one.extent = {20, 3, 2};
    one.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  }
  SHOW(cuMemsetD8_v2(memories.managed, 55, kBytes));
  std::memset(memories.mapped, 44, kBytes);
  boxes[0].src.op.ptr = {memories.managed, 0, 0, {}};
  boxes[0].dst.op.ptr = {memories.device, 0, 0, {}};
  boxes[1].src.op.ptr = {reinterpret_cast<CUdeviceptr>(memories.mapped), 0, 0, {}};
  boxes[1].dst.op.ptr = {memories.managed + 200, 0, 0, {}};
  REQUIRE(CUDA_SUCCESS, cuMemcpy3DBatchAsync_v2(2, boxes, 0, stream));
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(stream));
  const auto* const managed = reinterpret_cast<unsigned char*>(memories.managed);
  REQUIRE(CUDA_SUCCESS, cuMemcpyDtoH_v2(memories.pageable.data(), memories.device, 200));
  EXPECT(memories.pageable[0] == 55 && memories.pageable[119] == 55);
  EXPECT(managed[199] == 55 && managed[200] == 44 && managed[319] == 44 && managed[320] == 55);
}

void nodes(Memories& memories, CUarray array, CUcontext context, CUstream stream) {
  for (const auto& [what, memory] : memories.of_host()) {
    std::vector<unsigned char> back(kBytes);
    const CUDA_MEMCPY3D up = to_array(array, CU_MEMORYTYPE_HOST, memory),
                        down = from_array(array, CU_MEMORYTYPE_HOST, back.data());
    CUgraph graph = nullptr;
    CUgraphNode first = nullptr, second = nullptr;
    CUgraphExec executable = nullptr;
    std::printf("%s\n", what);
    SHOW(cuGraphCreate(&graph, 0));
    SHOW(cuGraphAddMemcpyNode(&first, graph, nullptr, 0, &up, context));
    SHOW(cuGraphAddMemcpyNode(&second, graph, &first, 1, &down, context));
    SHOW(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int round = 0; round < 3; ++round) {
      std::memset(memory, round + 3, kBytes);
      memory[kBytes - 1] = 77;
      SHOW(cuGraphLaunch(executable, stream));
      SHOW(cuStreamSynchronize(stream));
      EXPECT(sum(back.data()) == sum_of(static_cast<unsigned char>(round + 3), 77));
    }
    REQUIRE(CUDA_SUCCESS, cuGraphNodeSetEnabled(executable, first, 0));
    std::memset(memory, 200, kBytes);
    SHOW(cuGraphLaunch(executable, stream));
    SHOW(cuStreamSynchronize(stream));
    EXPECT(sum(back.data()) == sum_of(5, 77));  // the previous contents of the array
    std::vector<unsigned char> other(kBytes);
    const CUDA_MEMCPY3D elsewhere = from_array(array, CU_MEMORYTYPE_HOST, other.data());
    SHOW(cuGraphExecMemcpyNodeSetParams(executable, second, &elsewhere, context));
    SHOW(cuGraphLaunch(executable, stream));
    SHOW(cuStreamSynchronize(stream));
    EXPECT(sum(other.data()) == sum_of(5, 77));
    SHOW(cuGraphExecDestroy(executable));
    SHOW(cuGraphDestroy(graph));
  }
  // The same copies captured.
  auto* const pinned = static_cast<unsigned char*>(memories.pinned);
  const CUDA_MEMCPY3D up = to_array(array, CU_MEMORYTYPE_HOST, pinned),
                      down = from_array(array, CU_MEMORYTYPE_HOST, memories.mapped);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  SHOW(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  SHOW(cuMemcpy3DAsync_v2(&up, stream));
  SHOW(cuMemcpy3DAsync_v2(&down, stream));
  SHOW(cuStreamEndCapture(stream, &graph));
  SHOW(cuGraphInstantiateWithFlags(&executable, graph, 0));
  std::memset(pinned, 21, kBytes);
  SHOW(cuGraphLaunch(executable, stream));
  SHOW(cuStreamSynchronize(stream));
  EXPECT(sum(static_cast<unsigned char*>(memories.mapped)) == sum_of(21, 21));
  CUDA_MEMCPY3D wrong = up;
  CUgraphNode node = nullptr;
  wrong.WidthInBytes = kWidth + 1;
  SHOW(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &wrong, context));
  wrong = up;
  wrong.dstArray = wild<CUarray>();
  SHOW_UNLESS_GUARDED(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &wrong, context));
  wrong = up;
  wrong.srcHost = nullptr;
  SHOW(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &wrong, context));
  SHOW(cuGraphExecDestroy(executable));
  SHOW(cuGraphDestroy(graph));
}

}  // namespace

void array_copies() {
  CUstream stream = nullptr;
  CUcontext context = nullptr;
  CUarray array = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR shape{kWidth, kHeight, kDepth, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
  SHOW(cuCtxGetCurrent(&context));
  SHOW(cuStreamCreate(&stream, 0));
  SHOW(cuArray3DCreate_v2(&array, &shape));
  {
    Memories memories;
    each_memory(memories, array, stream);
    batch(memories, stream);
    nodes(memories, array, context, stream);
  }
  SHOW(cuArrayDestroy(array));
  SHOW(cuStreamDestroy_v2(stream));
}

}  // namespace parity
