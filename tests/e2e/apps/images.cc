// Loads module images repeatedly and large ones; the test counts the transferred bytes.
#include <chrono>
#include <cstdlib>

#include "protocol/images/fatbin_format.h"
#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

size_t argument(const Arguments& arguments, size_t index, size_t otherwise) {
  return index < arguments.size() ? std::strtoull(arguments[index].c_str(), nullptr, 10) : otherwise;
}

// Returns PTX of at least `bytes`, with kernels that each add different numbers.
std::string big_ptx(size_t bytes) {
  std::string ptx = ".version 7.0\n.target sm_50\n.address_size 64\n";
  ptx.reserve(bytes + 64 * 1024);
  for (unsigned i = 0; ptx.size() < bytes; ++i) {
    ptx += ".visible .entry kernel_" + std::to_string(i) +
           "(.param .u64 where)\n{\n.reg .b64 %a;\n.reg .b32 %v;\n"
           "ld.param.u64 %a, [where];\nld.global.u32 %v, [%a];\n";
    for (unsigned k = 0; k < 100; ++k) ptx += "add.u32 %v, %v, " + std::to_string(i * 100 + k) + ";\n";
    ptx += "st.global.u32 [%a], %v;\nret;\n}\n";
  }
  return ptx;
}

// Returns an entry of a fat binary, padded to the alignment of the next entry.
std::string fat_entry(uint16_t kind, uint32_t arch, std::string payload) {
  namespace format = gpupool::cuda::fatbin_format;
  payload.resize((payload.size() + 8) / 8 * 8);
  const format::EntryHeader header{.kind = kind,
                                   .version = 0x101,
                                   .header_size = sizeof header,
                                   .padded_payload = payload.size(),
                                   .arch = arch,
                                   .flags = 0x11};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}

}  // namespace

// [bytes]: loads a fat binary whose code is mostly for other devices, as a module and as a library.
SCENARIO(load_fat) {
  Device device;
  namespace format = gpupool::cuda::fatbin_format;
  const size_t bytes = argument(arguments, 0, 3 << 20);
  const std::string entries = fat_entry(format::kKindElf, 70, std::string(bytes / 2, 'x')) +
                              fat_entry(format::kKindPtx, 50, big_ptx(100)) +
                              fat_entry(format::kKindPtx, 120, big_ptx(bytes / 2));
  const format::ContainerHeader header{format::kContainerMagic, 1, sizeof header, entries.size()};
  const std::string image = std::string(reinterpret_cast<const char*>(&header), sizeof header) + entries;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  CUdeviceptr value = 0;
  OK(cuModuleLoadData(&module, image.data()));
  OK(cuModuleGetFunction(&kernel, module, "kernel_0"));
  OK(cuMemAlloc(&value, 4));
  OK(cuMemsetD32(value, 7, 1));
  void* parameters[] = {&value};
  OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
#if CUDA_VERSION >= 12000
  CUlibrary library = nullptr;
  CUkernel of_library = nullptr;
  OK(cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&of_library, library, "kernel_0"));
  OK(cuLaunchKernel(reinterpret_cast<CUfunction>(of_library), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters,
                    nullptr));
#else
  OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
#endif
  EXPECT(download<unsigned>(value, 1)[0] == 7 + 2 * 99 * 100 / 2);
}

// [contexts]: loads the same module in this many contexts and runs its kernel in each.
SCENARIO(load_in_contexts) {
  Device device;
  for (size_t i = argument(arguments, 0, 2); i-- > 0;) {
    CUcontext context = create_context(device.device);
    const Kernels kernels;
    CUdeviceptr values = 0;
    OK(cuMemAlloc(&values, 4 * sizeof(unsigned)));
    OK(cuMemsetD32(values, 1, 4));
    OK(kernels.launch("add", 1, 4, nullptr, values, 41u, 4u));
    EXPECT(download<unsigned>(values, 4) == std::vector<unsigned>(4, 42));
    OK(cuCtxDestroy(context));
  }
}

// [bytes]: loads a large module and runs one of its kernels. Prints the load time to stderr.
SCENARIO(load_big) {
  Device device;
  const std::string ptx = big_ptx(argument(arguments, 0, 2 << 20));
  CUmodule module = nullptr;
  const auto start = std::chrono::steady_clock::now();
  OK(cuModuleLoadData(&module, ptx.c_str()));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  std::fprintf(stderr, "%zu bytes of PTX loaded in %.1f ms\n", ptx.size(), took.count());
  CUfunction kernel = nullptr;
  OK(cuModuleGetFunction(&kernel, module, "kernel_1"));
  CUdeviceptr value = 0;
  OK(cuMemAlloc(&value, 4));
  OK(cuMemsetD32(value, 7, 1));
  void* parameters[] = {&value};
  OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  EXPECT(download<unsigned>(value, 1)[0] == 7 + 100 * 100 + 99 * 100 / 2);
}

// Loads the same broken image twice, then a valid one.
SCENARIO(load_broken) {
  Device device;
  for (int i = 0; i < 2; ++i) {
    CUmodule module = nullptr;
    GIVES(CUDA_ERROR_INVALID_PTX,
          cuModuleLoadData(&module, ".version 7.0\n.target sm_50\n.address_size 64\nnonsense\n"));
  }
  Kernels();
}
