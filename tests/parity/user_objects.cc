// User objects, which graphs keep alive.
#define __CUDA_API_VERSION_INTERNAL  // declares every version under its own name
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/parity/show.h"

namespace parity {

namespace {

std::atomic<int> destroyed{0};
void destroy(void*) {
  ++destroyed;
}

bool becomes(int count) {
  for (int i = 0; i < 1000 && destroyed != count; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return destroyed == count;
}

}  // namespace

void user_objects() {
  CUuserObject object = nullptr, second = nullptr;
  CUgraph graph = nullptr, clone = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphNode node = nullptr;
  CUstream stream = nullptr, releasing = nullptr;
  CUdeviceptr word = 0;
  REQUIRE(CUDA_SUCCESS, cuUserObjectCreate(&object, nullptr, destroy, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  SHOW(cuUserObjectCreate(nullptr, nullptr, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  SHOW(cuUserObjectCreate(&second, nullptr, nullptr, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  SHOW(cuUserObjectCreate(&second, nullptr, destroy, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  REQUIRE(CUDA_ERROR_INVALID_VALUE,
          cuUserObjectCreate(&second, nullptr, destroy, 1, 0));  // the flag is required
  REQUIRE(CUDA_SUCCESS, cuUserObjectRetain(object, 1));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(object, 0));
  SHOW(cuUserObjectRetain(nullptr, 1));
  SHOW(cuUserObjectRetain(wild<CUuserObject>(), 1));
  REQUIRE(CUDA_SUCCESS, cuUserObjectRelease(object, 2));
  SHOW_UNLESS_GUARDED(cuUserObjectRelease(object, 5));
  EXPECT(destroyed == 0);
  REQUIRE(CUDA_SUCCESS, cuUserObjectRelease(object, 1));  // the last reference
  EXPECT(becomes(1));
  SHOW_UNLESS_GUARDED(cuUserObjectRelease(object, 1));
  EXPECT(destroyed == 1);
  cuGraphCreate(&graph, 0);
  SHOW(cuUserObjectCreate(&object, nullptr, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  REQUIRE(CUDA_SUCCESS, cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  REQUIRE(CUDA_SUCCESS, cuGraphRetainUserObject(graph, object, 1, 0));
  REQUIRE(CUDA_SUCCESS, cuGraphReleaseUserObject(graph, object, 1));
  SHOW_UNLESS_GUARDED(cuGraphReleaseUserObject(graph, object, 5));
  SHOW(cuGraphRetainUserObject(graph, object, 1, 77));
  SHOW(cuGraphRetainUserObject(graph, nullptr, 1, 0));
  SHOW(cuGraphRetainUserObject(nullptr, object, 1, 0));
  SHOW(cuGraphReleaseUserObject(graph, wild<CUuserObject>(), 1));
  SHOW(cuGraphClone(&clone, graph));
  REQUIRE(CUDA_SUCCESS, cuGraphDestroy(graph));
  EXPECT(destroyed == 1);  // the clone has a reference
  // An executable graph holds its reference until its launches have completed.
  cuMemAlloc_v2(&word, 64);
  cuMemsetD8_v2(word, 0, 64);
  cuCtxSynchronize();
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuStreamCreate(&releasing, CU_STREAM_NON_BLOCKING);
  CUDA_MEMSET_NODE_PARAMS fill{word + 8, 4, 7, 4, 1, 1};
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  SHOW(cuGraphAddMemsetNode(&node, clone, nullptr, 0, &fill, context));
  SHOW(cuGraphInstantiateWithFlags(&exec, clone, 0));
  SHOW(cuGraphDestroy(clone));
  SHOW(cuStreamWaitValue32_v2(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
  SHOW(cuGraphLaunch(exec, stream));
  REQUIRE(CUDA_SUCCESS, cuGraphExecDestroy(exec));
  EXPECT(destroyed == 1);  // the launch has not completed
  SHOW(cuStreamWriteValue32_v2(releasing, word, 1, 0));
  SHOW(cuStreamSynchronize(stream));
  EXPECT(becomes(2));
  cuMemFree_v2(word);
}

}  // namespace parity
