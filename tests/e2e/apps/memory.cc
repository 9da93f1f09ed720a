// Device memory: copies of all shapes, fills, symbols, exhaustion.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/e2e/apps/scenario.h"

using namespace app;

SCENARIO(copies) {
  Device device;
  for (const size_t bytes :
       {size_t{1}, size_t{4095}, size_t{16384}, size_t{16385}, size_t{1} << 20, (size_t{3} << 20) + 7}) {
    const auto source = pattern(bytes, static_cast<uint32_t>(bytes));
    CUdeviceptr a = 0, b = 0;
    OK(cuMemAlloc(&a, bytes));
    OK(cuMemAlloc(&b, bytes));
    OK(cuMemcpyHtoD(a, source.data(), bytes));
    OK(cuMemcpyDtoD(b, a, bytes));
    EXPECT(download<uint8_t>(b, bytes) == source);
    // From the middle, with functions that determine the memory's type from the address.
    std::vector<uint8_t> half(bytes - bytes / 2);
    OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(half.data()), b + bytes / 2, half.size()));
    EXPECT(std::equal(half.begin(), half.end(), source.begin() + bytes / 2));
    const auto other = pattern(bytes, 99);
    OK(cuMemcpy(a, reinterpret_cast<CUdeviceptr>(other.data()), bytes));
    OK(cuMemcpyAsync(b, a, bytes, nullptr));
    EXPECT(download<uint8_t>(b, bytes) == other);
    // Device memory passed as a host pointer.
    OK(cuMemcpyHtoD(a, source.data(), bytes));
    OK(cuMemcpyDtoHAsync(reinterpret_cast<void*>(b), a, bytes, nullptr));
    EXPECT(download<uint8_t>(b, bytes) == source);
    OK(cuMemcpyHtoD(a, reinterpret_cast<void*>(b), bytes));
    EXPECT(download<uint8_t>(a, bytes) == source);
    OK(cuMemFree(a));
    OK(cuMemFree(b));
  }
}

SCENARIO(fills) {
  Device device;
  CUdeviceptr memory = 0;
  size_t pitch = 0;
  OK(cuMemAlloc(&memory, 4096));
  OK(cuMemsetD8(memory, 0xab, 4096));
  OK(cuMemsetD16(memory + 2, 0x1234, 10));
  OK(cuMemsetD32(memory + 400, 0xdeadbeef, 25));
  auto bytes = download<uint8_t>(memory, 4096);
  std::vector<uint8_t> expected(4096, 0xab);
  for (int i = 0; i < 10; ++i) std::memcpy(&expected[2 + 2 * i], "\x34\x12", 2);
  for (int i = 0; i < 25; ++i) std::memcpy(&expected[400 + 4 * i], "\xef\xbe\xad\xde", 4);
  EXPECT(bytes == expected);
  OK(cuMemFree(memory));
  OK(cuMemAllocPitch(&memory, &pitch, 100, 7, 4));
  OK(cuMemsetD8(memory, 1, pitch * 7));
  OK(cuMemsetD2D8(memory, pitch, 2, 99, 7));
  OK(cuMemsetD2D16(memory + pitch, pitch, 0x0303, 5, 3));
  OK(cuMemsetD2D32(memory + 2 * pitch, pitch, 0x04040404, 3, 2));
  bytes = download<uint8_t>(memory, pitch * 7);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t row = i / pitch, column = i % pitch;
    uint8_t want = column < 99 ? 2 : 1;
    if (row >= 1 && row < 4 && column < 10) want = 3;
    if (row >= 2 && row < 4 && column < 12) want = 4;
    EXPECT(bytes[i] == want);
  }
  OK(cuMemFree(memory));
}

namespace {

// A box inside a larger one, on the host or on the device.
struct Place {
  Place(bool on_device, size_t pitch, size_t height, size_t depth, uint32_t seed)
      : on_device(on_device), pitch(pitch), height(height), bytes(pattern(pitch * height * depth, seed)) {
    if (!on_device) return;
    OK(cuMemAlloc(&address, bytes.size()));
    OK(cuMemcpyHtoD(address, bytes.data(), bytes.size()));
  }
  ~Place() {
    if (on_device) OK(cuMemFree(address));
  }
  std::vector<uint8_t> now() const { return on_device ? download<uint8_t>(address, bytes.size()) : bytes; }
  bool on_device;
  size_t pitch, height;
  std::vector<uint8_t> bytes;
  CUdeviceptr address = 0;
};

void copy_box(bool from_device, bool to_device, bool three, bool asynchronous, CUstream stream) {
  Place from(from_device, 300, 20, 6, 1), to(to_device, 512, 17, 5, 2);
  const size_t width = 211, height = 9, depth = three ? 4 : 1;
  CUDA_MEMCPY3D box{};
  box.srcXInBytes = 13, box.srcY = 5, box.srcZ = three ? 1 : 0;
  box.dstXInBytes = 29, box.dstY = 3, box.dstZ = three ? 1 : 0;
  box.srcMemoryType = from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  box.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  box.srcHost = from.bytes.data(), box.srcDevice = from.address, box.srcPitch = from.pitch,
  box.srcHeight = from.height;
  box.dstHost = to.bytes.data(), box.dstDevice = to.address, box.dstPitch = to.pitch,
  box.dstHeight = to.height;
  box.WidthInBytes = width, box.Height = height, box.Depth = depth;
  auto expected = to.bytes;
  const auto at = [](const Place& place, size_t x, size_t y, size_t z) {
    return (z * place.height + y) * place.pitch + x;
  };
  for (size_t z = 0; z < depth; ++z) {
    for (size_t y = 0; y < height; ++y) {
      std::memcpy(&expected[at(to, box.dstXInBytes, box.dstY + y, box.dstZ + z)],
                  &from.bytes[at(from, box.srcXInBytes, box.srcY + y, box.srcZ + z)], width);
    }
  }
  if (three) {
    OK(asynchronous ? cuMemcpy3DAsync(&box, stream) : cuMemcpy3D(&box));
  } else {
    CUDA_MEMCPY2D flat{};
    flat.srcXInBytes = box.srcXInBytes, flat.srcY = box.srcY, flat.dstXInBytes = box.dstXInBytes,
    flat.dstY = box.dstY;
    flat.srcMemoryType = box.srcMemoryType, flat.dstMemoryType = box.dstMemoryType;
    flat.srcHost = box.srcHost, flat.srcDevice = box.srcDevice, flat.srcPitch = box.srcPitch;
    flat.dstHost = box.dstHost, flat.dstDevice = box.dstDevice, flat.dstPitch = box.dstPitch;
    flat.WidthInBytes = width, flat.Height = height;
    OK(asynchronous ? cuMemcpy2DAsync(&flat, stream) : cuMemcpy2D(&flat));
  }
  if (asynchronous) OK(cuStreamSynchronize(stream));
  if (to.now() == expected) return;
  std::printf("from device %d, to device %d, 3D %d, asynchronous %d\n", from_device, to_device, three,
              asynchronous);
  EXPECT(!"the copy is wrong");
}

}  // namespace

SCENARIO(boxes) {
  Device device;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int which = 0; which < 16; ++which) copy_box(which & 1, which & 2, which & 4, which & 8, stream);
  OK(cuStreamDestroy(stream));
}

SCENARIO(symbols) {
  Device device;
  Kernels kernels;
  CUdeviceptr counter = 0, table = 0, out = 0;
  size_t counter_bytes = 0, table_bytes = 0;
  OK(cuModuleGetGlobal(&counter, &counter_bytes, kernels.module, "counter"));
  OK(cuModuleGetGlobal(&table, &table_bytes, kernels.module, "table"));
  EXPECT(counter_bytes == 4 && table_bytes == 64);
  EXPECT(download<uint32_t>(counter, 1)[0] == 7);
  std::vector<uint32_t> values(16);
  for (uint32_t i = 0; i < 16; ++i) values[i] = i * i;
  OK(cuMemcpyHtoD(table, values.data(), 64));
  OK(cuMemAlloc(&out, 4000));
  OK(kernels.launch("use_symbols", 8, 128, nullptr, out, 1000u));
  const auto result = download<uint32_t>(out, 1000);
  for (uint32_t i = 0; i < 1000; ++i) EXPECT(result[i] == values[i % 16] + i);
  EXPECT(download<uint32_t>(counter, 1)[0] == 1007);
  CUdeviceptr nothing = 0;
  GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&nothing, nullptr, kernels.module, "absent"));
  OK(cuMemFree(out));
  OK(cuModuleUnload(kernels.module));
}

SCENARIO(exhaustion) {
  Device device;
  size_t total = 0;
  OK(cuDeviceTotalMem(&total, device.device));
  const size_t piece = total / 16 >> 21 << 21;
  const auto take_all = [piece] {
    std::vector<CUdeviceptr> taken;
    while (taken.size() < 64) {
      CUdeviceptr address = 0;
      const CUresult result = cuMemAlloc(&address, piece);
      if (result == CUDA_ERROR_OUT_OF_MEMORY) return taken;
      OK(result);
      OK(cuMemsetD8(address, 0x5a, piece));
      taken.push_back(address);
    }
    EXPECT(!"a device gives four times the memory that it has");
    return taken;
  };
  auto first = take_all();
  OK(cuCtxSynchronize());
  EXPECT(first.size() >= 12 && first.size() <= 16);
  for (const CUdeviceptr address : first) OK(cuMemFree(address));
  const auto second = take_all();
  EXPECT(second.size() == first.size());
  OK(cuCtxSynchronize());
  // Near the limit, freed memory is available again immediately.
  for (const CUdeviceptr address : second) OK(cuMemFree(address));
  const size_t most = (first.size() - 1) * piece;
  const int rounds = total >> 34 != 0 ? 5 : 50;  // zeroing 100 GiB takes a while
  for (int i = 0; i < rounds; ++i) {
    CUdeviceptr address = 0;
    OK(cuMemAlloc(&address, most));
    OK(cuMemsetD8(address + most - 1, 1, 1));
    OK(cuMemFree(address));
  }
  CUdeviceptr small = 0;
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&small, size_t{1} << 40));
  OK(cuMemAlloc(&small, 1));
  OK(cuMemFree(small));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(small));
  OK(cuCtxSynchronize());
}

SCENARIO(free_memory_comes_back) {
  Device device;
  size_t before = 0, during = 0, after = 0, total = 0;
  CUdeviceptr address = 0;
  OK(cuMemGetInfo(&before, &total));
  OK(cuMemAlloc(&address, size_t{32} << 20));
  OK(cuMemGetInfo(&during, &total));
  EXPECT(before - during == size_t{32} << 20);
  OK(cuMemFree(address));
  OK(cuMemGetInfo(&after, &total));
  EXPECT(after == before);
  std::printf("total %zu MiB\n", total >> 20);
}

SCENARIO(many_small_allocations) {
  Device device;
  Kernels kernels;
  std::vector<CUdeviceptr> addresses;
  for (uint32_t i = 0; i < 2000; ++i) {
    CUdeviceptr address = 0;
    OK(cuMemAlloc(&address, 4 * (1 + i % 300)));
    OK(cuMemsetD32(address, i, 1 + i % 300));
    addresses.push_back(address);
    if (i % 3 == 2) {
      OK(cuMemFree(addresses[i - 1]));
      addresses[i - 1] = 0;
    }
  }
  for (uint32_t i = 0; i < addresses.size(); ++i) {
    if (!addresses[i]) continue;
    const auto values = download<uint32_t>(addresses[i], 1 + i % 300);
    EXPECT(std::all_of(values.begin(), values.end(), [&](uint32_t value) { return value == i; }));
    OK(cuMemFree(addresses[i]));
  }
}

// Prints whether the server maps the same pages, which requires a connection that can pass descriptors.
SCENARIO(shared_pinned_memory) {
  Device device;
  void* memory = nullptr;
  OK(cuMemHostAlloc(&memory, 1 << 20, 0));
  const auto address = reinterpret_cast<uintptr_t>(memory);
  std::ifstream maps("/proc/self/maps");
  std::string mapping;
  for (std::string line; std::getline(maps, line);) {
    char* dash = nullptr;
    const uintptr_t begin = std::strtoull(line.c_str(), &dash, 16),
                    end = std::strtoull(dash + 1, nullptr, 16);
    if (begin <= address && address < end) mapping = line;
  }
  std::printf("pinned memory is %s\n",
              mapping.find("gpupool-pinned") != std::string::npos ? "shared" : "private");
  OK(cuMemFreeHost(memory));
}
