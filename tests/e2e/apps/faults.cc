// Kernels that fail, and images that cannot be loaded.
#include <atomic>
#include <numeric>

#include "protocol/images/fatbin_format.h"
#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

// Prints the failed kernel's error code, and that later calls on the context repeat it.
void report(const char* what, CUcontext context) {
  const CUresult first = cuCtxSynchronize();
  CUdeviceptr address = 0;
  CUstream stream = nullptr;
  const CUresult then[] = {cuCtxSynchronize(), cuMemAlloc(&address, 64), cuStreamCreate(&stream, 0)};
  std::printf("%s: %s, then %s %s %s\n", what, name_of(first), name_of(then[0]), name_of(then[1]),
              name_of(then[2]));
  EXPECT(first != CUDA_SUCCESS);
}

}  // namespace

SCENARIO(illegal_address) {
  Device device;
  Kernels kernels;
  OK(kernels.launch("store_at", 1, 1, nullptr, uint64_t{0x1000}));
  report("store at 0x1000", device.context);
}

// Requires CUDA_LAUNCH_BLOCKING=1.
SCENARIO(fault_at_the_launch) {
  Device device;
  Kernels kernels;
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, 4));
  OK(kernels.launch("add", 1, 1, nullptr, memory, 1u, 1u));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, kernels.launch("store_at", 1, 1, nullptr, uint64_t{0x1000}));
}

SCENARIO(trap) {
  Device device;
  Kernels kernels;
  OK(kernels.launch("stop_with_trap", 1, 1, nullptr));
  report("trap", device.context);
}

SCENARIO(assertion) {
  Device device;
  Kernels kernels;
  OK(kernels.launch("stop_with_assert", 1, 1, nullptr, 1u));
  OK(cuCtxSynchronize());
  OK(kernels.launch("stop_with_assert", 1, 1, nullptr, 2u));
  report("assert", device.context);
}

// After a device error CUDA calls a stream's callbacks with the error, but does not call its host functions.
SCENARIO(callbacks_behind_a_trap) {
  Device device;
  Kernels kernels;
  static std::atomic<int> status{-1}, calls{0};
  OK(kernels.launch("stop_with_trap", 1, 1, nullptr));
  OK(cuStreamAddCallback(
      nullptr,
      [](CUstream, CUresult result, void*) {
        status = result;
        status.notify_all();
      },
      nullptr, 0));
  OK(cuLaunchHostFunc(
      nullptr, [](void*) { ++calls; }, nullptr));
  GIVES(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
  status.wait(-1);
  EXPECT(status != CUDA_SUCCESS);
  EXPECT(calls == 0);
}

namespace {

constexpr unsigned kTextureWidth = 4, kTextureTexels = 16;

// Makes a texture over a new array with these texels, in rows of kTextureWidth.
CUtexObject make_texture(const std::vector<unsigned>& texels) {
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR shape{kTextureWidth, kTextureTexels / kTextureWidth,
                                    CU_AD_FORMAT_UNSIGNED_INT32, 1};
  OK(cuArrayCreate(&array, &shape));
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = texels.data();
  copy.srcPitch = copy.WidthInBytes = kTextureWidth * sizeof(unsigned);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.Height = kTextureTexels / kTextureWidth;
  OK(cuMemcpy2D(&copy));
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  CUDA_TEXTURE_DESC reading{};
  reading.flags = CU_TRSF_READ_AS_INTEGER;
  CUtexObject texture = 0;
  OK(cuTexObjectCreate(&texture, &resource, &reading, nullptr));
  return texture;
}

}  // namespace

// Kernels launched before a texture is destroyed can still use it; later kernels cannot.
SCENARIO(destroyed_texture) {
  Device device;
  Kernels kernels;
  kernels.load({"read_texture", "burn_forever"});
  std::vector<unsigned> texels(kTextureTexels);
  std::iota(texels.begin(), texels.end(), 100u);
  const CUtexObject texture = make_texture(texels);
  CUDA_RESOURCE_DESC resource{};
  CUdeviceptr out = 0, flag = 0;
  OK(cuMemAlloc(&out, kTextureTexels * sizeof(unsigned)));
  OK(cuMemAlloc(&flag, sizeof(unsigned)));
  OK(cuMemsetD32(flag, 0, 1));
  CUstream stream = nullptr, other = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(kernels.launch("burn_forever", 1, 1, stream, flag));
  OK(kernels.launch("read_texture", 1, kTextureTexels, stream, texture, out, kTextureWidth, kTextureTexels));
  OK(cuTexObjectDestroy(texture));
  OK(cuMemsetD32Async(flag, 1, 1, other));
  OK(cuStreamSynchronize(stream));
  EXPECT(download<unsigned>(out, kTextureTexels) == texels);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetResourceDesc(&resource, texture));
  OK(kernels.launch("read_texture", 1, kTextureTexels, stream, texture, out, kTextureWidth, kTextureTexels));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
}

// The driver gets the launch only after the host function has returned.
SCENARIO(texture_destroyed_behind_a_host_function) {
  Device device;
  Kernels kernels;
  std::vector<unsigned> texels(kTextureTexels);
  std::iota(texels.begin(), texels.end(), 100u);
  const CUtexObject texture = make_texture(texels);
  CUdeviceptr out = 0;
  OK(cuMemAlloc(&out, kTextureTexels * sizeof(unsigned)));
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Gate gate;
  gate.put_into(stream);
  OK(kernels.launch("read_texture", 1, kTextureTexels, stream, texture, out, kTextureWidth, kTextureTexels));
  OK(cuTexObjectDestroy(texture));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(texture));
  const CUtexObject next =
      make_texture(std::vector<unsigned>(kTextureTexels, 7));  // may get the first texture's number
  gate.let_go();
  OK(cuStreamSynchronize(stream));
  EXPECT(download<unsigned>(out, kTextureTexels) == texels);
  OK(cuTexObjectDestroy(next));
}

// The context is lost; after a reset the process can use a new one.
SCENARIO(fault_then_reset) {
  Device device;
  {
    Kernels kernels;
    OK(kernels.launch("store_at", 1, 1, nullptr, uint64_t{8}));
  }
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  OK(cuDevicePrimaryCtxReset(device.device));
  OK(cuDevicePrimaryCtxRetain(&device.context, device.device));
  Kernels kernels;
  CUdeviceptr values = 0;
  OK(cuMemAlloc(&values, 4096));
  OK(kernels.launch("fill", 4, 256, nullptr, values, 1u, 1024u));
  EXPECT(download<uint32_t>(values, 1024)[1023] == 1024);
}

// A healthy program that runs the given number of rounds.
SCENARIO(bystander) {
  Device device;
  Kernels kernels;
  CUdeviceptr values = 0;
  OK(cuMemAlloc(&values, 4096));
  std::printf("working\n");
  std::fflush(stdout);
  const unsigned rounds = static_cast<unsigned>(std::stoul(arguments.at(0)));
  for (unsigned round = 0; round < rounds; ++round) {
    OK(kernels.launch("fill", 4, 256, nullptr, values, round, 1024u));
    EXPECT(download<uint32_t>(values, 1024)[1023] == round + 1023);
  }
}

// A fat binary that has only machine code for another device.
SCENARIO(library_without_code) {
  Device device;
  namespace format = gpupool::cuda::fatbin_format;
  struct {
    format::ContainerHeader head{format::kContainerMagic, 1, sizeof head, sizeof entry + sizeof payload};
    format::EntryHeader entry{.kind = format::kKindElf,
                              .version = 0x101,
                              .header_size = sizeof entry,
                              .padded_payload = sizeof payload,
                              .arch = 70,
                              .flags = 0x11};
    char payload[8] = {};
  } image;
  CUmodule module = nullptr;
  GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, &image));
#if CUDA_VERSION >= 12000
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  OK(cuLibraryLoadData(&library, &image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  for (int again = 0; again < 2; ++again)
    GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, cuLibraryGetKernel(&kernel, library, "k"));
#endif
}

SCENARIO(images_that_cannot_run) {
  Device device;
  CUmodule module = nullptr;
  const auto load = [&](const char* what, const char* image) {
    std::printf("%s: %s\n", what, name_of(cuModuleLoadData(&module, image)));
  };
  load("no PTX at all", "this is no PTX");
  load("empty", "");
  load("version", ".version 99.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n ret;\n}\n");
  load("instruction",
       ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n frobnicate.b32 1;\n "
       "ret;\n}\n");
  load("unfinished", ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n ret;\n");
  char log[512] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  const CUresult result = cuModuleLoadDataEx(
      &module,
      ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n frobnicate.b32 1;\n ret;\n}\n",
      2, options, values);
  EXPECT(result == CUDA_ERROR_INVALID_PTX);
  EXPECT(std::string(log).find("frobnicate") != std::string::npos);
  OK(cuCtxSynchronize());
  Kernels kernels;  // the context still works
  OK(kernels.launch("nothing", 1, 1, nullptr));
  OK(cuCtxSynchronize());
}
