// Copies large enough for bulk connections, in every shape, direction and order.
#include <sys/mman.h>

#include <cstring>
#include <memory>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

constexpr size_t kLarge = (5u << 20) + 12'345;  // several pieces, the last one short

uint8_t* pinned(size_t bytes) {
  void* memory = nullptr;
  OK(cuMemAllocHost(&memory, bytes));
  return static_cast<uint8_t*>(memory);
}

CUdeviceptr device_memory(size_t bytes) {
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, bytes));
  return memory;
}

CUstream stream() {
  CUstream made = nullptr;
  OK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  return made;
}

CUDA_MEMCPY2D rows(size_t width, size_t count) {
  CUDA_MEMCPY2D copy{};
  copy.WidthInBytes = width;
  copy.Height = count;
  return copy;
}

}  // namespace

SCENARIO(large_copies) {
  Device device;
  const auto data = pattern(kLarge, 1);
  const CUdeviceptr there = device_memory(kLarge);
  for (int round = 0; round < 3; ++round) {
    std::vector<uint8_t> back(kLarge);
    const auto sent = pattern(kLarge, 10 + round);
    OK(cuMemcpyHtoD(there, sent.data(), kLarge));
    OK(cuMemcpyDtoH(back.data(), there, kLarge));
    EXPECT(back == sent);
  }
  // The memory may be reused as soon as a synchronous copy, or an asynchronous one from pageable memory, has
  // returned.
  std::vector<uint8_t> reused = data;
  OK(cuMemcpyHtoDAsync(there, reused.data(), kLarge, nullptr));
  std::memset(reused.data(), 0, kLarge);
  EXPECT(download<uint8_t>(there, kLarge) == data);
  // Parts of the memory at unaligned offsets.
  OK(cuMemcpyHtoD(there + 77, data.data() + 1000, 3u << 20));
  std::vector<uint8_t> part(3u << 20);
  OK(cuMemcpyDtoH(part.data(), there + 77, part.size()));
  EXPECT(std::memcmp(part.data(), data.data() + 1000, part.size()) == 0);
}

SCENARIO(large_asynchronous_copies) {
  Device device;
  Kernels kernels;
  constexpr int kStreams = 3, kRounds = 4;
  std::vector<CUstream> streams;
  std::vector<CUdeviceptr> memory;
  std::vector<uint8_t*> up, down;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(stream());
    memory.push_back(device_memory(kLarge));
    up.push_back(pinned(kLarge));
    down.push_back(pinned(kLarge * kRounds));
    const auto data = pattern(kLarge, i);
    std::memcpy(up.back(), data.data(), kLarge);
  }
  // Repeated uploads, kernels and downloads in each stream without waiting.
  const unsigned words = kLarge / 4;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kStreams; ++i) {
      OK(cuMemcpyHtoDAsync(memory[i], up[i], kLarge, streams[i]));
      OK(kernels.launch("add", words / 256 + 1, 256, streams[i], memory[i], static_cast<unsigned>(round + 1),
                        words));
      OK(cuMemcpyDtoHAsync(down[i] + round * kLarge, memory[i], kLarge, streams[i]));
    }
  }
  for (const CUstream each : streams) OK(cuStreamSynchronize(each));
  for (int i = 0; i < kStreams; ++i) {
    for (int round = 0; round < kRounds; ++round) {
      for (unsigned word = 0; word < words; word += 997) {
        uint32_t before = 0, after = 0;
        std::memcpy(&before, up[i] + word * 4, 4);
        std::memcpy(&after, down[i] + round * kLarge + word * 4, 4);
        EXPECT(after == before + round + 1);
      }
    }
  }
  // Other ways to wait also see the data.
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuMemsetD8Async(memory[0], 0x5a, kLarge, streams[0]));
  OK(cuMemcpyDtoHAsync(down[0], memory[0], kLarge, streams[0]));
  OK(cuEventRecord(event, streams[0]));
  while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
  }
  for (size_t at = 0; at < kLarge; at += 4093) EXPECT(down[0][at] == 0x5a);
  EXPECT(down[0][kLarge - 1] == 0x5a);
  // Freeing pinned memory waits for the copies from it.
  for (int i = 0; i < kStreams; ++i) OK(cuMemcpyHtoDAsync(memory[i], up[i], kLarge, streams[i]));
  for (int i = 0; i < kStreams; ++i) OK(cuMemFreeHost(up[i]));
  OK(cuCtxSynchronize());
  for (int i = 0; i < kStreams; ++i) EXPECT(download<uint8_t>(memory[i], kLarge) == pattern(kLarge, i));
}

SCENARIO(large_boxes) {
  Device device;
  const CUstream own = stream();
  struct Shape {
    size_t width, count, device_pitch, host_pitch;
  };
  for (const Shape& shape :
       {Shape{1000, 5000, 1024, 1000}, Shape{3, 700'000, 8, 5}, Shape{70'000, 60, 70'016, 90'000},
        Shape{3u << 20, 3, (3u << 20) + 512, 4u << 20}, Shape{4096, 1024, 4096, 4096}}) {
    const size_t host_bytes = shape.host_pitch * shape.count;
    const CUdeviceptr there = device_memory(shape.device_pitch * shape.count);
    uint8_t* const up = pinned(host_bytes);
    uint8_t* const down = pinned(host_bytes);
    const auto data = pattern(host_bytes, static_cast<uint32_t>(shape.width));
    std::memcpy(up, data.data(), host_bytes);
    for (const bool wait : {true, false}) {
      std::memset(down, 0xee, host_bytes);
      OK(cuMemsetD8(there, 0, shape.device_pitch * shape.count));
      OK(cuCtxSynchronize());
      CUDA_MEMCPY2D in = rows(shape.width, shape.count);
      in.srcMemoryType = CU_MEMORYTYPE_HOST;
      in.srcHost = up;
      in.srcPitch = shape.host_pitch;
      in.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      in.dstDevice = there;
      in.dstPitch = shape.device_pitch;
      CUDA_MEMCPY2D out = rows(shape.width, shape.count);
      out.srcMemoryType = CU_MEMORYTYPE_DEVICE;
      out.srcDevice = there;
      out.srcPitch = shape.device_pitch;
      out.dstMemoryType = CU_MEMORYTYPE_HOST;
      out.dstHost = down;
      out.dstPitch = shape.host_pitch;
      if (wait) {
        OK(cuMemcpy2D(&in));
        OK(cuMemcpy2D(&out));
      } else {
        OK(cuMemcpy2DAsync(&in, own));
        OK(cuMemcpy2DAsync(&out, own));
        OK(cuStreamSynchronize(own));
      }
      for (size_t row = 0; row < shape.count; ++row) {
        const size_t at = row * shape.host_pitch;
        EXPECT(std::memcmp(down + at, up + at, shape.width) == 0);
        if (shape.host_pitch > shape.width)
          EXPECT(down[at + shape.width] == 0xee);  // bytes between the rows do not change
      }
    }
    OK(cuMemFree(there));
    OK(cuMemFreeHost(up));
    OK(cuMemFreeHost(down));
  }
}

// Copies in a blocked stream must not delay the copies and kernels of other streams, nor the program.
SCENARIO(large_copies_behind_a_stuck_stream) {
  Device device;
  Kernels kernels;
  kernels.load({"fill"});
  const CUstream stuck = stream(), other = stream();
  const CUdeviceptr flag = device_memory(4), first = device_memory(kLarge), second = device_memory(kLarge);
  uint8_t* const up = pinned(kLarge);
  uint8_t* const down = pinned(kLarge);
  const auto data = pattern(kLarge, 9);
  std::memcpy(up, data.data(), kLarge);
  OK(cuMemsetD32(flag, 0, 1));
  OK(cuCtxSynchronize());
  OK(cuStreamWaitValue32(stuck, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
  for (int i = 0; i < 20; ++i)
    OK(cuMemcpyHtoDAsync(first, up, kLarge, stuck));  // more than is staged at a time
  OK(cuMemcpyDtoHAsync(down, first, kLarge, stuck));
  OK(kernels.launch("fill", 4, 256, other, second, 1u, 1000u));
  OK(cuStreamSynchronize(other));
  std::vector<uint8_t> back(kLarge);
  OK(cuMemcpyDtoHAsync(back.data(), second, kLarge, other));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stuck));
  OK(cuStreamWriteValue32(other, flag, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  OK(cuStreamSynchronize(stuck));
  EXPECT(std::memcmp(down, data.data(), kLarge) == 0);
}

// A registration must end with its memory, since other memory may get the same address.
SCENARIO(pinned_memory_comes_and_goes) {
  Device device;
  constexpr size_t kBytes = 2u << 20;
  const CUdeviceptr there = device_memory(kBytes);
  const auto round_trip = [&](uint8_t* memory, uint32_t seed) {
    const auto data = pattern(kBytes, seed);
    std::memcpy(memory, data.data(), kBytes);
    OK(cuMemcpyHtoDAsync(there, memory, kBytes, nullptr));
    OK(cuStreamSynchronize(nullptr));
    EXPECT(download<uint8_t>(there, kBytes) == data);
    std::memset(memory, 0, kBytes);
    OK(cuMemcpyDtoH(memory, there, kBytes));
    EXPECT(std::memcmp(memory, data.data(), kBytes) == 0);
  };
  for (uint32_t round = 0; round < 4; ++round) {  // usually the same address each time
    uint8_t* const memory = pinned(kBytes);
    round_trip(memory, 20 + round);
    // Freed while a copy is in progress.
    OK(cuMemcpyDtoHAsync(memory, there, kBytes, nullptr));
    OK(cuMemFreeHost(memory));
  }
  void* place = nullptr;
  for (uint32_t round = 0; round < 4; ++round) {  // always other pages at the same address
    void* const memory = mmap(place, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0), -1, 0);
    EXPECT(memory != MAP_FAILED);
    place = memory;
    OK(cuMemHostRegister(memory, kBytes, 0));
    round_trip(static_cast<uint8_t*>(memory), 30 + round);
    OK(cuMemHostUnregister(memory));
    OK(cuMemcpyHtoD(there, memory, kBytes));  // pageable now
  }
  munmap(place, kBytes);
}

// Copies at an unaligned device address, and copies larger than one block of device memory.
SCENARIO(pinned_copies_of_every_shape) {
  Device device;
  const CUstream own = stream();
  for (const size_t bytes : {size_t{256} << 10, (size_t{1} << 20) - 1, (size_t{40} << 20) + 3}) {
    const CUdeviceptr there = device_memory(bytes + 5);
    uint8_t* const memory = pinned(2 * bytes);
    const auto data = pattern(bytes, static_cast<uint32_t>(bytes));
    std::memcpy(memory, data.data(), bytes);
    OK(cuMemcpyHtoDAsync(there + 5, memory, bytes, own));
    OK(cuMemcpyDtoHAsync(memory + bytes, there + 5, bytes, own));
    OK(cuStreamSynchronize(own));
    EXPECT(std::memcmp(memory + bytes, data.data(), bytes) == 0);
    // Download and upload the same memory without waiting.
    OK(cuMemsetD8Async(there, 0x33, bytes, own));
    OK(cuMemcpyDtoHAsync(memory, there, bytes, own));
    OK(cuMemcpyHtoDAsync(there + 5, memory, bytes, own));
    OK(cuStreamSynchronize(own));
    EXPECT(memory[bytes - 1] == 0x33);
    EXPECT(download<uint8_t>(there + 5, bytes) == std::vector<uint8_t>(bytes, 0x33));
    OK(cuMemFree(there));
    OK(cuMemFreeHost(memory));
  }
}

// [bytes, a multiple of 64 KiB]: copies pageable memory, then the same memory pinned, which needs only one
// buffer.
SCENARIO(copies_of_one_size) {
  constexpr size_t kBlock = 64u << 10;
  const size_t bytes = std::stoull(arguments.at(0));
  EXPECT(bytes % kBlock == 0);
  Device device;
  const CUdeviceptr there = device_memory(bytes);
  const std::unique_ptr<uint8_t[]> memory(new uint8_t[bytes]);
  const CUstream own = stream();
  // Every block begins with a number of its own, so that none can take another's place, and continues with
  // the pattern from another byte on, another one in each round. Filling and comparing single words would
  // take longer than the copies.
  const auto data = pattern(2 * kBlock, 11);
  uint64_t round = 0, number = 0;
  const auto number_of = [&](size_t at) { return round << 32 | at / kBlock; };
  const auto content = [&] { return data.data() + (number * sizeof number + round * 4099) % kBlock; };
  const auto round_trip = [&] {
    ++round;
    for (size_t at = 0; at < bytes; at += kBlock) {
      number = number_of(at);
      std::memcpy(&memory[at], content(), kBlock);
      std::memcpy(&memory[at], &number, sizeof number);
    }
    OK(cuMemcpyHtoDAsync(there, memory.get(), bytes, own));
    OK(cuStreamSynchronize(own));
    std::memset(memory.get(), 0, bytes);
    OK(cuMemcpyDtoHAsync(memory.get(), there, bytes, own));
    OK(cuStreamSynchronize(own));
    for (size_t at = 0; at < bytes; at += kBlock) {
      number = number_of(at);
      EXPECT(std::memcmp(&memory[at], &number, sizeof number) == 0);
      EXPECT(std::memcmp(&memory[at + sizeof number], content() + sizeof number, kBlock - sizeof number) ==
             0);
    }
  };
  round_trip();
  OK(cuMemHostRegister(memory.get(), bytes, 0));
  round_trip();
  OK(cuMemHostUnregister(memory.get()));
  OK(cuMemFree(there));
}
