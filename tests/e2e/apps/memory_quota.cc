// Memory limited by a tenant's quota: every way to allocate it, up to the last granule.
#include <unistd.h>

#include <cstring>
#include <functional>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

constexpr size_t kGranule = size_t{2} << 20;

struct Taken {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle memory = 0;
  CUarray array = nullptr;
};

struct Way {
  std::string name;
  std::function<CUresult(Taken*, size_t bytes)> take;
  std::function<CUresult(const Taken&)> give = [](const Taken& taken) { return cuMemFree(taken.address); };
};

CUmemAllocationProp properties() {
  CUmemAllocationProp made{};
  made.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return made;
}

std::vector<Way> ways() {
  return {{"cuMemAlloc", [](Taken* taken, size_t bytes) { return cuMemAlloc(&taken->address, bytes); }},
          {"cuMemAllocPitch",
           [](Taken* taken, size_t bytes) {
             size_t pitch = 0;
             return cuMemAllocPitch(&taken->address, &pitch, 1024, bytes / 1024, 4);
           }},
          {"cuMemAllocAsync",
           [](Taken* taken, size_t bytes) { return cuMemAllocAsync(&taken->address, bytes, nullptr); },
           [](const Taken& taken) { return cuMemFreeAsync(taken.address, nullptr); }},
          {"cuMemAllocFromPoolAsync",
           [](Taken* taken, size_t bytes) {
             CUmemoryPool pool = nullptr;
             OK(cuDeviceGetDefaultMemPool(&pool, 0));
             return cuMemAllocFromPoolAsync(&taken->address, bytes, pool, nullptr);
           }},
          {"cuMemCreate",
           [](Taken* taken, size_t bytes) {
             const auto wanted = properties();
             return cuMemCreate(&taken->memory, bytes, &wanted, 0);
           },
           [](const Taken& taken) { return cuMemRelease(taken.memory); }},
          {"cuArray3DCreate",
           [](Taken* taken, size_t bytes) {
             // A granule is 128 rows. For a multiple of 128 rows the worker computes the size itself
             // (server/worker/memory/arrays.cc).
             const CUDA_ARRAY3D_DESCRIPTOR wanted{4096, bytes / 16384, 0, CU_AD_FORMAT_FLOAT, 1, 0};
             return cuArray3DCreate(&taken->array, &wanted);
           },
           [](const Taken& taken) { return cuArrayDestroy(taken.array); }}};
}

std::string module_of(size_t bytes) {
  return ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 block[" +
         std::to_string(bytes) + "];\n";
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  OK(cuMemGetInfo(&free, &total));
  return free;
}

}  // namespace

// [granules of the quota]: the device has more memory than the quota.
SCENARIO(quota_every_way) {
  Device device;
  const size_t granules = std::stoul(arguments.at(0));
  size_t total = 0, free = 0;
  OK(cuDeviceTotalMem(&total, device.device));
  EXPECT(total == granules * kGranule);
  OK(cuMemGetInfo(&free, &total));
  EXPECT(total == granules * kGranule && free == total);
  for (const Way& way : ways()) {
    for (const size_t each : {size_t{1}, size_t{7}, granules}) {
      std::vector<Taken> all;
      for (size_t used = 0; used + each <= granules; used += each) {
        EXPECT(free_bytes() == (granules - used) * kGranule);
        Taken taken;
        OK(way.take(&taken, each * kGranule));
        if (taken.address) OK(cuMemsetD8(taken.address + each * kGranule - 1, 1, 1));
        all.push_back(taken);
      }
      Taken none;
      GIVES(CUDA_ERROR_OUT_OF_MEMORY, way.take(&none, (granules % each + 1) * kGranule));
      OK(cuCtxSynchronize());  // later calls do not return the error again
      const size_t left = granules % each;
      EXPECT(free_bytes() == left * kGranule);
      if (left != 0) {
        Taken rest;
        OK(way.take(&rest, left * kGranule));
        EXPECT(free_bytes() == 0);
        GIVES(CUDA_ERROR_OUT_OF_MEMORY, way.take(&none, kGranule));
        OK(way.give(rest));
      }
      for (const Taken& taken : all) OK(way.give(taken));
      OK(cuCtxSynchronize());  // memory pools release what exceeds their threshold
      EXPECT(free_bytes() == granules * kGranule);
    }
    std::printf("%s\n", way.name.c_str());
  }
}

// [granules of each device's quota...]: fills the devices one after the other.
SCENARIO(quota_of_each_device) {
  std::vector<CUdeviceptr> full;
  for (size_t ordinal = 0; ordinal < arguments.size(); ++ordinal) {
    Device device(static_cast<int>(ordinal));
    const size_t bytes = std::stoul(arguments[ordinal]) * kGranule;
    size_t total = 0, free = 0;
    OK(cuDeviceTotalMem(&total, device.device));
    EXPECT(total == bytes);
    OK(cuMemGetInfo(&free, &total));
    EXPECT(total == bytes && free == bytes);
    CUdeviceptr none = 0;
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&none, bytes + kGranule));
    OK(cuMemAlloc(&full.emplace_back(), bytes - kGranule));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&none, 2 * kGranule));
    OK(cuMemAlloc(&full.emplace_back(), kGranule));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&none, 1));
    EXPECT(free_bytes() == 0);
  }
  for (const CUdeviceptr memory : full) OK(cuMemFree(memory));
}

// Small allocations share granules and can fill them.
SCENARIO(quota_small_allocations) {
  Device device;
  const size_t granules = std::stoul(arguments.at(0));
  CUdeviceptr large = 0;
  OK(cuMemAlloc(&large, (granules - 1) * kGranule));
  std::vector<CUdeviceptr> small;
  for (size_t i = 0; i < kGranule / 512; ++i) OK(cuMemAlloc(&small.emplace_back(), 1 + i % 512));
  CUdeviceptr none = 0;
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&none, 1));
  EXPECT(free_bytes() == 0);
  OK(cuMemFree(small.back()));
  OK(cuCtxSynchronize());
  OK(cuMemAlloc(&small.back(), 512));
  for (const CUdeviceptr address : small) OK(cuMemFree(address));
  EXPECT(free_bytes() == kGranule);
  OK(cuMemAlloc(&none, kGranule));  // although small allocations used this granule before
  OK(cuMemFree(large));
  OK(cuMemFree(none));
}

SCENARIO(quota_of_modules_and_limits) {
  Device device;
  const size_t bytes = std::stoul(arguments.at(0)) * kGranule;
  CUmodule module = nullptr, more = nullptr;
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuModuleLoadData(&module, module_of(bytes + 1).c_str()));
  EXPECT(free_bytes() == bytes);
  OK(cuModuleLoadData(&module, module_of(bytes - 1024).c_str()));
  EXPECT(free_bytes() == 1024);
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuModuleLoadData(&more, module_of(1025).c_str()));
  CUlibrary library = nullptr;
  GIVES(CUDA_ERROR_OUT_OF_MEMORY,
        cuLibraryLoadData(&library, module_of(1025).c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUdeviceptr address = 0;
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&address, 1));
  OK(cuModuleUnload(module));
  EXPECT(free_bytes() == bytes);
  size_t heap = 0, fifo = 0;
  OK(cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE));
  OK(cuCtxGetLimit(&fifo, CU_LIMIT_PRINTF_FIFO_SIZE));
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap + bytes + 1));
  OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap + bytes));
  EXPECT(free_bytes() == 0);
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, fifo + 1));
  size_t now = 0;
  OK(cuCtxGetLimit(&now, CU_LIMIT_PRINTF_FIFO_SIZE));
  EXPECT(now == fifo);
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&address, 1));
  OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap));
  OK(cuMemAlloc(&address, bytes));
  OK(cuMemFree(address));
}

// [quota, context: MiB]: the first context is charged like any other.
SCENARIO(quota_counts_contexts) {
  const size_t quota = std::stoul(arguments.at(0)) << 20, each = std::stoul(arguments.at(1)) << 20;
  CUcontext first = nullptr, second = nullptr;
  OK(cuInit(0));
  for (int round = 0; round < 2; ++round) {
    size_t total = 0;
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuCtxSetCurrent(first));
    OK(cuDeviceTotalMem(&total, 0));
    EXPECT(total == quota);
    EXPECT(free_bytes() == quota - each);
    second = create_context(0);
    EXPECT(free_bytes() == quota - 2 * each);
    CUdeviceptr address = 0;
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&address, quota - each));
    OK(cuMemAlloc(&address, quota - 2 * each));
    OK(cuMemFree(address));
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(nullptr));
    OK(cuDevicePrimaryCtxRelease(0));
  }
}

// If the quota has no room for a context, only the calls that create one fail.
SCENARIO(quota_without_room_for_a_context) {
  CUcontext context = nullptr;
  unsigned flags = 0;
  int active = 1, count = 0;
  OK(cuInit(0));
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT(active == 0);
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
#if CUDA_VERSION >= 13000
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate(&context, nullptr, 0, 0));
#else
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate(&context, 0, 0));
#endif
  OK(cuDeviceGetCount(&count));
  CUdeviceptr address = 0;
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&address, 1));
}

namespace {

// Returns a module with kernels that use this much local memory per thread.
std::string module_of_kernels(const std::vector<size_t>& local_bytes) {
  std::string text = ".version 7.0\n.target sm_70\n.address_size 64\n";
  for (const size_t bytes : local_bytes) {
    const std::string number = std::to_string(bytes);
    text +=
        ".visible .entry local" + number + "(.param .u64 out) {\n.local .align 4 .b8 room[" + number +
        "];\n.reg .u64 %a;\n.reg .u32 %v;\nmov.u64 %a, room;\nst.local.u32 [%a], 7;\nld.local.u32 %v, [%a];\n"
        "ld.param.u64 %a, [out];\nst.global.u32 [%a], %v;\nret;\n}\n";
  }
  return text;
}

}  // namespace

// [quota: MiB, file]: makes the device allocate memory by itself, step by step. Prints the charged bytes
// after each step N and continues when the file FILEN exists. The device runs at most 4,096 threads.
SCENARIO(quota_of_local_memory) {
  Device device;
  const size_t quota = std::stoul(arguments.at(0)) << 20;
  int step = 0;
  const auto report = [&] {
    OK(cuCtxSynchronize());
    std::printf("step %d: %zu\n", ++step, quota - free_bytes());
    std::fflush(stdout);
    const std::string next = arguments.at(1) + std::to_string(step);
    for (int i = 0; i < 60'000 && ::access(next.c_str(), F_OK) != 0; ++i) ::usleep(1000);
  };
  report();
  CUmodule module = nullptr;
  CUdeviceptr out = 0;
  void* parameters[] = {&out};
  const auto launch = [&](const char* name) {
    CUfunction kernel = nullptr;
    OK(cuModuleGetFunction(&kernel, module, name));
    return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
  };
  OK(cuMemAlloc(&out, 4));
  OK(cuModuleLoadData(&module, module_of_kernels({512, 4096, 8192, 65536, 131072}).c_str()));
  OK(launch("local512"));
  report();
  OK(launch("local8192"));
  EXPECT(free_bytes() <= quota - (32u << 20));
  report();
  // The launch itself fails, and no other call.
  for (const char* const large : {"local65536", "local131072"})
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, launch(large));
  OK(cuCtxSynchronize());
  OK(launch("local4096"));
  OK(launch("local8192"));
  report();
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 65536));
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 10240));
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
  report();
  OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 9u << 20));
  OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16u << 20));
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, quota));
  report();
  EXPECT(download<uint32_t>(out, 1)[0] == 7);
}

// Prints the device's free memory, for a program without a quota.
SCENARIO(show_free_memory) {
  Device device;
  std::printf("free %zu\n", free_bytes());
}

// [file, index into ways()]: when the file exists, allocates granules as fast as possible, and keeps them
// until it is killed.
SCENARIO(quota_race) {
  Device device;
  const Way way = ways().at(std::stoul(arguments.at(1)));
  OK(cuCtxSynchronize());
  std::printf("ready\n");
  std::fflush(stdout);
  for (int i = 0; i < 60'000 && ::access(arguments.at(0).c_str(), F_OK) != 0; ++i) ::usleep(1000);
  std::vector<Taken> all;
  CUresult result = CUDA_SUCCESS;
  while (result == CUDA_SUCCESS) result = way.take(&all.emplace_back(), kGranule);
  EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuCtxSynchronize());
  std::printf("took %zu.\n", all.size() - 1);
  std::fflush(stdout);
  ::pause();
}

// [file]: in each of four rounds N prints the available memory, then waits until the file FILEN exists.
SCENARIO(quota_follows) {
  Device device;
  CUdeviceptr kept = 0;
  OK(cuMemAlloc(&kept, 4 * kGranule));
  for (int round = 1;; ++round) {
    size_t free = 0, total = 0;
    OK(cuMemGetInfo(&free, &total));
    CUdeviceptr address = 0;
    const CUresult result = cuMemAlloc(&address, 4 * kGranule);
    std::printf("round %d: %zu of %zu granules, %s\n", round, free / kGranule, total / kGranule,
                name_of(result));
    std::fflush(stdout);
    if (result == CUDA_SUCCESS) OK(cuMemFree(address));
    const std::string next = arguments.at(0) + std::to_string(round);
    for (int i = 0; i < 60'000 && ::access(next.c_str(), F_OK) != 0; ++i) ::usleep(1000);
    if (round == 4) break;
  }
  OK(cuMemsetD8(kept, 1, 4 * kGranule));
  OK(cuMemFree(kept));
}

// New memory must not contain other programs' data.
SCENARIO(memory_is_zero) {
  Device device;
  const auto is_zero = [](CUdeviceptr address, size_t bytes) {
    const auto read = download<uint8_t>(address, bytes);
    return holds_only(read.data(), read.size(), 0);
  };
  for (const size_t bytes : {size_t{100}, size_t{5} << 20, size_t{40} << 20}) {
    for (const Way& way : ways()) {
      Taken taken;
      const size_t whole = (bytes + kGranule - 1) / kGranule * kGranule;
      OK(way.take(&taken, whole));
      CUdeviceptr address = taken.address;
      if (taken.array) {
        std::vector<uint8_t> read(whole, 1);
        CUDA_MEMCPY2D copy{};
        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY, copy.srcArray = taken.array;
        copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = read.data(), copy.dstPitch = 16384;
        copy.WidthInBytes = 16384, copy.Height = whole / 16384;
        OK(cuMemcpy2D(&copy));
        EXPECT(holds_only(read.data(), read.size(), 0));
        OK(way.give(taken));
        continue;
      }
      if (taken.memory) {
        CUmemAccessDesc access{properties().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        OK(cuMemAddressReserve(&address, whole, 0, 0, 0));
        OK(cuMemMap(address, whole, 0, taken.memory, 0));
        OK(cuMemSetAccess(address, whole, &access, 1));
      }
      EXPECT(is_zero(address, whole));
      if (taken.memory) {
        OK(cuMemUnmap(address, whole));
        OK(cuMemAddressFree(address, whole));
      }
      if (taken.memory) OK(way.give(taken));
    }
  }
  CUmodule module = nullptr;
  CUdeviceptr block = 0;
  size_t size = 0;
  OK(cuModuleLoadData(&module, module_of(3'000'000).c_str()));
  OK(cuModuleGetGlobal(&block, &size, module, "block"));
  EXPECT(is_zero(block, size));
}
