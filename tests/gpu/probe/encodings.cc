// Device attributes, tensor maps, green contexts, and empty grids.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "probe.h"

using namespace probe;

namespace {

std::string bytes_that_differ(const CUtensorMap& one, const CUtensorMap& other) {
  std::string offsets;
  for (size_t i = 0; i < sizeof one; ++i) {
    const int a = reinterpret_cast<const unsigned char*>(&one)[i],
              b = reinterpret_cast<const unsigned char*>(&other)[i];
    char text[40];
    std::snprintf(text, sizeof text, "%s%zu: %02x/%02x", offsets.empty() ? "" : ", ", i, a, b);
    if (a != b) offsets += text;
  }
  return offsets;
}

CUtensorMap encode(CUdeviceptr address) {
  alignas(128) CUtensorMap map{};
  const cuuint64_t sizes[3] = {64, 32, 8}, strides[2] = {128, 4096};
  const cuuint32_t box[3] = {32, 8, 1}, steps[3] = {1, 1, 1};
  CHECK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, reinterpret_cast<void*>(address),
                               sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

// Returns the multiprocessors that a green context of the first of two equal parts uses: one character per
// multiprocessor of the device, '#' if used.
std::string multiprocessors_of_a_part(const Device& device) {
  CUdevResource all{}, parts[2]{}, rest{};
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  unsigned count = 2;
  CHECK(cuDeviceGetDevResource(device.device, &all, CU_DEV_RESOURCE_TYPE_SM));
  const unsigned wanted = all.sm.smCount / 2 / 8 * 8;
  CHECK(cuDevSmResourceSplitByCount(parts, &count, &all, &rest, 0, wanted ? wanted : all.sm.smCount / 2));
  CHECK(cuDevResourceGenerateDesc(&description, parts, 1));
  CHECK(cuGreenCtxCreate(&green, description, device.device, CU_GREEN_CTX_DEFAULT_STREAM));
  CHECK(cuCtxFromGreenCtx(&context, green));
  CHECK(cuCtxSetCurrent(context));
  constexpr unsigned kMost = 1024;
  const Kernels kernels;
  CUdeviceptr seen = 0;
  std::vector<uint32_t> flags(kMost);
  CHECK(cuMemAlloc(&seen, kMost * sizeof(uint32_t)));
  CHECK(cuMemsetD8(seen, 0, kMost * sizeof(uint32_t)));
  void* parameters[] = {&seen};
  CHECK(cuLaunchKernel(kernels.function("where"), 1024, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  CHECK(cuMemcpyDtoH(flags.data(), seen, kMost * sizeof(uint32_t)));
  std::string said(all.sm.smCount, '-');
  for (unsigned i = 0; i < all.sm.smCount && i < kMost; ++i) said[i] = flags[i] ? '#' : '-';
  return said;
}

// The same in a child process, which is forked before the driver is used.
struct Part {
  pid_t process = -1;
  int output = -1;
};
Part start_part() {
  int ends[2];
  if (::pipe(ends) != 0) throw Failure("no pipe");
  const pid_t process = ::fork();
  if (process == 0) {
    std::string said;
    try {
      said = multiprocessors_of_a_part(Device());
    } catch (const std::exception& failure) {
      said = std::string("! ") + failure.what();
    }
    const bool written = ::write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    ::close(ends[1]);
    ::alarm(10);
    if (written) ::pause();  // keeps the context until the parent has read from both children
    std::_Exit(0);
  }
  ::close(ends[1]);
  return {process, ends[0]};
}
std::string read_all(int file) {
  std::string text;
  char buffer[2048];
  for (ssize_t count = 0; (count = ::read(file, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(count));
  return text;
}

}  // namespace

PROBE(device) {
  const Device device;
  char name[200] = {};
  int version = 0;
  size_t total = 0;
  CHECK(cuDeviceGetName(name, sizeof name, device.device));
  CHECK(cuDriverGetVersion(&version));
  CHECK(cuDeviceTotalMem(&total, device.device));
  see("name", name);
  see("driver_version", static_cast<double>(version));
  see("total_MiB", static_cast<double>(total / kMiB));
  see("free_MiB", static_cast<double>(device.free() / kMiB));
  const struct {
    const char* name;
    CUdevice_attribute attribute;
  } kAttributes[] = {
      {"compute_major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
      {"compute_minor", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
      {"multiprocessors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {"copy_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
      {"unified_addressing", CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
      {"virtual_memory", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
      {"memory_as_descriptors", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {"fabric_handles", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED},
      {"gpu_direct_rdma_with_vmm", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED},
      {"dma_buf", CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED},
      {"memory_pools", CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
      {"host_register", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
      {"concurrent_managed_access", CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
      {"compute_mode", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE},
      {"flush_remote_writes", CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES},
  };
  for (const auto& each : kAttributes) see(each.name, static_cast<double>(device.attribute(each.attribute)));
}

PROBE(tensor_maps) {
  const Device device;
  CUdeviceptr tensor = 0;
  CHECK(cuMemAlloc(&tensor, 4 * kMiB));
  const CUtensorMap one = encode(tensor);
  const CUtensorMap again = encode(tensor), near = encode(tensor + 4096), far = encode(tensor + 2 * kMiB);
  see("same_address_same_bytes", std::memcmp(&one, &again, sizeof one) == 0);
  see("bytes_that_differ_4096_further", bytes_that_differ(one, near));
  see("bytes_that_differ_2_MiB_further", bytes_that_differ(one, far));
  double offset = -1;
  for (size_t i = 0; i + sizeof tensor <= sizeof one; i += sizeof tensor) {
    CUdeviceptr first = 0, second = 0;
    std::memcpy(&first, reinterpret_cast<const char*>(&one) + i, sizeof first);
    std::memcpy(&second, reinterpret_cast<const char*>(&far) + i, sizeof second);
    if (first == tensor && second == tensor + 2 * kMiB) offset = static_cast<double>(i);
  }
  see("plain_address_at_byte", offset);
  std::vector<double> times;
  for (int i = 0; i < 1000; ++i) times.push_back(time_of([&] { encode(tensor); }));
  see("encode_us", median(times));
  CUtensorMap patched = one;
  see("replace_address",
      name_of(cuTensorMapReplaceAddress(&patched, reinterpret_cast<void*>(tensor + 4096))));
  see("replaced_is_encoded", std::memcmp(&patched, &near, sizeof near) == 0);
}

PROBE(green_split) {
  Part parts[2] = {start_part(), start_part()};
  std::string said[2];
  step("wait for the two processes");
  for (int i = 0; i < 2; ++i) said[i] = read_all(parts[i].output);
  for (const Part& part : parts) {
    ::kill(part.process, SIGKILL);
    ::waitpid(part.process, nullptr, 0);
  }
  for (const std::string& each : said) {
    if (each.rfind("! ", 0) == 0) throw Failure(each.substr(2));
  }
  see("first_process", said[0]);
  see("second_process", said[1]);
  see("same_multiprocessors", said[0] == said[1]);
}

// tinygrad makes graph nodes with a grid of 0 blocks and sets their size before it launches the graph.
PROBE(grid_of_no_blocks) {
  const Device device;
  const Kernels kernels;
  CUDA_KERNEL_NODE_PARAMS node{};
  node.func = kernels.function("nothing");
  node.gridDimX = 0;
  node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = node.blockDimZ = 1;
  CUgraph graph = nullptr;
  CUgraphNode added = nullptr;
  CUgraphExec executable = nullptr;
  see("launch", name_of(cuLaunchKernel(node.func, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr)));
  CHECK(cuGraphCreate(&graph, 0));
  const CUresult result = cuGraphAddKernelNode(&added, graph, nullptr, 0, &node);
  see("add_node", name_of(result));
  if (result != CUDA_SUCCESS) return;
  const CUresult instantiated = cuGraphInstantiate(&executable, graph, 0);
  see("instantiate", name_of(instantiated));
  if (instantiated == CUDA_SUCCESS) see("launch_graph", name_of(cuGraphLaunch(executable, nullptr)));
  node.gridDimX = 1;
  if (instantiated == CUDA_SUCCESS)
    see("set_size", name_of(cuGraphExecKernelNodeSetParams(executable, added, &node)));
}

// gpupool passes the parameters of a node packed, and names a CUkernel and a context.
PROBE(cooperative_nodes) {
  const Device device;
  const Kernels kernels;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CHECK(cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK(cuLibraryGetKernel(&kernel, library, "nothing"));
  CUdeviceptr data = 0;
  size_t bytes = sizeof data;
  void* singly[] = {&data};
  void* packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &data, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                    CU_LAUNCH_PARAM_END};
  for (const bool by_kernel : {false, true}) {
    for (const bool is_packed : {false, true}) {
      CUDA_KERNEL_NODE_PARAMS node{};
      if (by_kernel) {
        node.kern = kernel;
        node.ctx = device.context;
      } else {
        node.func = kernels.function("nothing");
      }
      node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = node.blockDimZ = 1;
      node.kernelParams = is_packed ? nullptr : singly;
      node.extra = is_packed ? packed : nullptr;
      CUgraph graph = nullptr;
      CUgraphNode added = nullptr;
      CUgraphExec executable = nullptr;
      CUkernelNodeAttrValue cooperative{};
      cooperative.cooperative = 1;
      Object results;
      CHECK(cuGraphCreate(&graph, 0));
      results.add("add", name_of(cuGraphAddKernelNode(&added, graph, nullptr, 0, &node)));
      results.add("set_attribute", name_of(cuGraphKernelNodeSetAttribute(
                                       added, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &cooperative)));
      const CUresult instantiated = cuGraphInstantiate(&executable, graph, 0);
      results.add("instantiate", name_of(instantiated));
      if (instantiated == CUDA_SUCCESS) results.add("launch", name_of(cuGraphLaunch(executable, nullptr)));
      results.add("synchronise", name_of(cuCtxSynchronize()));
      see(std::string(by_kernel ? "kernel" : "function") + (is_packed ? "_packed" : "_singly"), results);
    }
  }
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  see("launch_packed", name_of(cuLaunchKernelEx(&config, kernels.function("nothing"), nullptr, packed)));
  see("synchronise", name_of(cuCtxSynchronize()));
}
