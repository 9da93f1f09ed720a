// Launches that are rejected because of a kernel's properties: clusters, cooperative grids, attributes.
#include <initializer_list>
#include <vector>

#include "tests/parity/show.h"

namespace parity {
namespace {

const char kClusters[] = R"(
.version 9.0
.target sm_90
.address_size 64
.visible .entry plain(.param .u64 out) { ret; }
.visible .entry pairs(.param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1 { ret; }
.visible .entry counted(.param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1 .blocksareclusters .reqntid 32, 1, 1 { ret; }
.visible .entry bounded(.param .u64 out) .maxntid 64, 1, 1 { ret; }
.visible .entry any(.param .u64 out) .explicitcluster { ret; }
)";

CUresult launch_with(CUfunction function, std::vector<CUlaunchAttribute> attributes, unsigned x,
                     unsigned y = 1, unsigned z = 1, unsigned threads = 32) {
  CUdeviceptr out = 0;
  void* parameters[] = {&out};
  CUlaunchConfig config{};
  config.gridDimX = x, config.gridDimY = y, config.gridDimZ = z;
  config.blockDimX = threads, config.blockDimY = config.blockDimZ = 1;
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  return cuLaunchKernelEx(&config, function, parameters, nullptr);
}

CUlaunchAttribute cluster(unsigned x, unsigned y, unsigned z) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {x, y, z};
  return attribute;
}

void clusters() {
  CUmodule module = nullptr;
  CUfunction plain = nullptr, pairs = nullptr, counted = nullptr, any = nullptr;
  SHOW(cuModuleLoadData(&module, kClusters));
  SHOW(cuModuleGetFunction(&plain, module, "plain"));
  SHOW(cuModuleGetFunction(&pairs, module, "pairs"));
  SHOW(cuModuleGetFunction(&counted, module, "counted"));
  SHOW(cuModuleGetFunction(&any, module, "any"));
  SHOW(launch_with(plain, {cluster(2, 1, 1)}, 4));
  SHOW(launch_with(plain, {cluster(2, 1, 1)}, 5));
  SHOW(launch_with(plain, {cluster(2, 2, 1)}, 4, 3));
  SHOW(launch_with(plain, {cluster(1, 1, 2)}, 1, 1, 3));
  SHOW(launch_with(plain, {cluster(8, 1, 1)}, 8));
  SHOW(launch_with(plain, {cluster(16, 1, 1)}, 16));
  SHOW(launch_with(plain, {cluster(4, 4, 1)}, 4, 4));
  SHOW(launch_with(plain, {cluster(17, 1, 1)}, 17));
  SHOW(launch_with(plain, {cluster(~0u, 1, 1)}, 4));
  SHOW(launch_with(plain, {cluster(0, 1, 1)}, 4));
  SHOW(launch_with(plain, {cluster(1, 1, 0)}, 4));
  SHOW(launch_with(plain, {cluster(2, 1, 1), cluster(3, 1, 1)}, 4));
  SHOW(cuFuncSetAttribute(plain, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
  SHOW(launch_with(plain, {cluster(16, 1, 1)}, 16));
  SHOW(launch_with(plain, {cluster(32, 1, 1)}, 32));
  SHOW(launch_with(pairs, {}, 4));
  SHOW(launch_with(pairs, {}, 5));
  SHOW(launch_with(pairs, {cluster(2, 1, 1)}, 4));
  SHOW(launch_with(pairs, {cluster(4, 1, 1)}, 4));
  SHOW(launch_with(counted, {}, 5));
  SHOW(launch_with(counted, {cluster(2, 1, 1)}, 5));
  SHOW(launch_with(any, {}, 4));
  SHOW(launch_with(any, {cluster(4, 1, 1)}, 4));
  SHOW(cuFuncSetAttribute(any, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4));
  SHOW(launch_with(any, {}, 6));
  SHOW(cuCtxSynchronize());
  // The grid's shape is checked first.
  SHOW(launch_with(plain, {cluster(2, 1, 1)}, 0));
  SHOW(launch_with(plain, {cluster(3, 1, 1)}, 4, 1, 1, 5000));
  CUlaunchAttribute attribute{};
  for (const int id : {-1, 0, 2, 4, 6, 10, 16, 17, 99}) {
    attribute.id = static_cast<CUlaunchAttributeID>(id);
    std::printf("attribute %d: %s\n", id, name_of(launch_with(plain, {attribute}, 1)));
  }
  for (const int id : {-1, 17, 99}) {
    attribute.id = static_cast<CUlaunchAttributeID>(id);
    REQUIRE(CUDA_ERROR_INVALID_VALUE, launch_with(plain, {attribute}, 1));
  }
  SHOW(cuCtxSynchronize());
  SHOW(cuModuleUnload(module));
}

void cooperative() {
  CUmodule module = nullptr;
  CUfunction plain = nullptr;
  SHOW(cuModuleLoadData(&module, kClusters));
  SHOW(cuModuleGetFunction(&plain, module, "plain"));
  CUdeviceptr out = 0;
  void* parameters[] = {&out};
  SHOW(cuLaunchCooperativeKernel(plain, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters));
  SHOW(cuLaunchCooperativeKernel(plain, 60000, 1, 1, 1024, 1, 1, 0, nullptr, parameters));
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  SHOW(launch_with(plain, {attribute}, 60000, 1, 1, 1024));
  attribute.value.cooperative = 0;
  SHOW(launch_with(plain, {attribute}, 60000, 1, 1, 32));
  SHOW(cuCtxSynchronize());
  SHOW(cuModuleUnload(module));
}

// Launch attributes of graph nodes are checked like those of launches.
void unknown_attributes_in_graphs() {
  CUmodule module = nullptr;
  CUfunction plain = nullptr;
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  size_t count = 1;
  cuModuleLoadData(&module, kClusters);
  cuModuleGetFunction(&plain, module, "plain");
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  CUlaunchAttribute attribute{};
  attribute.id = static_cast<CUlaunchAttributeID>(99);
  CUdeviceptr out = 0;
  void* parameters[] = {&out};
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY =
      config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(&config, plain, parameters, nullptr));
  config.numAttrs = 0;
  REQUIRE(CUDA_SUCCESS, cuLaunchKernelEx(&config, plain, parameters, nullptr));
  REQUIRE(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
  REQUIRE(CUDA_SUCCESS, cuGraphGetNodes(graph, &node, &count));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeSetAttribute(node, attribute.id, &attribute.value));
  cuGraphDestroy(graph);
  cuModuleUnload(module);
}

// Blocks that exceed the launch bounds fail with CUDA_ERROR_INVALID_VALUE, like invalid block shapes.
void beyond_launch_bounds() {
  CUmodule module = nullptr;
  CUfunction bounded = nullptr;
  CUdeviceptr out = 0;
  void* parameters[] = {&out};
  cuModuleLoadData(&module, kClusters);
  cuModuleGetFunction(&bounded, module, "bounded");
  REQUIRE(CUDA_SUCCESS, launch(bounded, 1, 64, 0, nullptr, parameters));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, launch(bounded, 1, 65, 0, nullptr, parameters));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, launch(bounded, 1, 1024, 0, nullptr, parameters));
  cuModuleUnload(module);
}

}  // namespace

void refused_launches() {
  clusters();
  unknown_attributes_in_graphs();
  beyond_launch_bounds();
  cooperative();
}

}  // namespace parity
