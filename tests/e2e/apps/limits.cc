// As many streams or modules as there are to be had.
#include <sys/resource.h>

#include <cstring>

#include "tests/e2e/apps/scenario.h"

using namespace app;

// [number]: how many of them work. Streams are created without waiting for the answer, so that the refusal comes with a later call.
SCENARIO(many_streams) {
  Device device;
  const int wanted = std::stoi(arguments.at(0));
  std::vector<CUstream> streams;
  CUresult refused = CUDA_SUCCESS;
  for (int i = 0; i < wanted && refused == CUDA_SUCCESS; ++i) {
    CUstream stream = nullptr;
    refused = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (refused == CUDA_SUCCESS) refused = cuCtxSynchronize();
    if (refused == CUDA_SUCCESS) streams.push_back(stream);
  }
  std::printf("%zu of %d streams work, then %s\n", streams.size(), wanted, name_of(refused));
  for (const CUstream stream : streams) OK(cuStreamSynchronize(stream));
  OK(cuStreamDestroy(streams.back()));
  CUstream again = nullptr;
  OK(cuStreamCreate(&again, CU_STREAM_NON_BLOCKING));
  OK(cuStreamSynchronize(again));
}

SCENARIO(many_modules) {
  Device device;
  const int wanted = std::stoi(arguments.at(0));
  std::vector<CUmodule> modules;
  CUresult refused = CUDA_SUCCESS;
  for (int i = 0; i < wanted && refused == CUDA_SUCCESS; ++i) {
    const std::string image = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k" + std::to_string(i) + "()\n{\n ret;\n}\n";
    CUmodule module = nullptr;
    refused = cuModuleLoadData(&module, image.c_str());
    if (refused == CUDA_SUCCESS) modules.push_back(module);
  }
  std::printf("%zu of %d modules, then %s\n", modules.size(), wanted, name_of(refused));
  OK(cuModuleUnload(modules.back()));
  OK(cuModuleLoadData(&modules.back(), ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry last()\n{\n ret;\n}\n"));
}

// Pinned memory that the server shares is a file, which must not be longer than the program's files may be.
SCENARIO(pinned_memory_with_short_files) {
  Device device;
  const rlimit limit{1 << 20, 1 << 20};
  EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  constexpr size_t kBytes = 8 << 20;
  unsigned char* memory = nullptr;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&memory), kBytes));
  CUdeviceptr there = 0;
  OK(cuMemAlloc(&there, kBytes));
  std::memset(memory, 5, kBytes);
  OK(cuMemcpyHtoD(there, memory, kBytes));
  std::memset(memory, 0, kBytes);
  OK(cuMemcpyDtoHAsync(memory, there, kBytes, nullptr));
  OK(cuStreamSynchronize(nullptr));
  EXPECT(memory[0] == 5 && memory[kBytes - 1] == 5);
  OK(cuMemFreeHost(memory));
  OK(cuMemFree(there));
}
