// Copies between devices: programs must not see whether the devices are of one server or of two.
#include <cstring>

#include "tests/e2e/apps/side.h"

using namespace app;

SCENARIO(copies_between_devices) {
  constexpr size_t kMost = (size_t{9} << 20) + 4099;
  const Side a(0, kMost + 64), b(1, kMost + 64);
  const CUdeviceptr from = a.memory, to = b.memory;
  for (const size_t bytes : {size_t{1}, size_t{4096}, (size_t{1} << 20) + 3, kMost}) {
    const auto data = pattern(bytes, static_cast<uint32_t>(bytes));
    const auto other = pattern(bytes, static_cast<uint32_t>(bytes) + 1);
    a.use();
    put(from, data);
    OK(cuMemcpyDtoD(to, from, bytes));
    expect_at(to, data);
    put(to, other);  // to the other device's memory, from this context
    expect_at(to, other);
    OK(cuMemcpyDtoD(from, to, bytes));
    expect_at(from, other);
    OK(cuMemcpy(to, reinterpret_cast<uintptr_t>(data.data()), bytes));
    OK(cuMemcpy(from, to, bytes));
    expect_at(from, data);
    b.use();
    OK(cuMemcpyPeer(from + 7, a.device.context, to, b.device.context, bytes));
    expect_at(from + 7, data);
    put(to, other);
    for (const Side* side : {&a, &b}) {
      side->use();
      OK(cuMemcpyDtoDAsync(from, to, bytes, side->stream));
      OK(cuMemsetD8Async(to, 0x11, bytes, side->stream));  // in the stream's order, although on the other
                                                           // device
      OK(cuMemcpyDtoDAsync(to, from, bytes, side->stream));
      OK(cuMemcpyPeerAsync(from + 5, a.device.context, to, b.device.context, bytes, side->stream));
      OK(cuStreamSynchronize(side->stream));
      expect_at(to, other);
      expect_at(from + 5, other);
    }
  }
  // Within one device, but from the other device's context and stream.
  constexpr size_t kPart = 100'000, kPitch = 1000;
  const auto part = pattern(kPart, 9);
  a.use();
  put(to, part);
  OK(cuMemcpyDtoD(to + 2 * kPart, to, kPart));
  OK(cuMemcpyPeer(to + 4 * kPart, b.device.context, to + 2 * kPart, b.device.context, kPart));
  OK(cuMemsetD8Async(to, 0x22, kPart, a.stream));
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = to + 4 * kPart;
  rows.dstDevice = to;
  rows.srcPitch = rows.dstPitch = kPitch;
  rows.WidthInBytes = kPitch - 1;
  rows.Height = kPart / kPitch;
  OK(cuMemcpy2DAsync(&rows, a.stream));
  OK(cuStreamSynchronize(a.stream));
  expect_at(to + 4 * kPart, part);
  auto expected = part;
  for (size_t at = kPitch - 1; at < kPart; at += kPitch) expected[at] = 0x22;
  expect_at(to, expected);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(to, from, kMost + 4096));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoDAsync(to, from, kMost + 4096, b.stream));
}

// Copies directly after data that is still in flight to the server when cuMemcpyHtoD returns.
SCENARIO(copies_behind_new_data) {
  constexpr size_t kBytes = size_t{8} << 20, kHalf = kBytes / 2;
  const Side a(0, kBytes), b(1, kBytes);
  const auto put_at = [](const Side& side, const std::vector<uint8_t>& data) {
    side.use();
    put(side.memory, data);
  };
  for (uint32_t round = 0; round < 3; ++round) {
    auto data = pattern(kBytes, round);
    put_at(b, data);
    OK(cuMemcpyDtoDAsync(a.memory, b.memory, kBytes, a.stream));  // from the other device
    OK(cuStreamSynchronize(a.stream));
    expect_at(a.memory, data);
    put_at(b, data);
    OK(cuMemsetD8Async(b.memory + kHalf, 7, kHalf, a.stream));
    OK(cuStreamSynchronize(a.stream));
    std::fill(data.begin() + kHalf, data.end(), uint8_t{7});
    expect_at(b.memory, data);
    const auto other = pattern(kBytes, round + 100);
    put_at(a, other);
    put_at(b, data);
    OK(cuMemcpyDtoDAsync(b.memory, a.memory, kBytes, a.stream));  // to the other device
    OK(cuStreamSynchronize(a.stream));
    expect_at(b.memory, other);
    put_at(a, data);
    OK(cuMemcpyPeer(b.memory, b.device.context, a.memory, a.device.context, kBytes));
    expect_at(b.memory, data);
  }
}

// [rounds]: copies back and forth; checks only small parts, so that little data passes through the program.
SCENARIO(large_copies_between_devices) {
  constexpr size_t kBytes = size_t{16} << 20, kLooked = 4096;
  const int rounds = std::stoi(arguments.at(0));
  const Side a(0, kBytes), b(1, kBytes);
  a.use();
  const auto data = pattern(kBytes, 5);
  put(a.memory, data);
  for (int round = 0; round < rounds; ++round) {
    OK(cuMemsetD8Async(b.memory, static_cast<unsigned char>(round), kBytes, b.stream));
    OK(cuStreamSynchronize(b.stream));
    OK(cuMemcpyPeerAsync(b.memory, b.device.context, a.memory, a.device.context, kBytes, a.stream));
    OK(cuMemsetD8Async(a.memory, 0xcc, kBytes, a.stream));
    OK(cuMemcpyPeerAsync(a.memory, a.device.context, b.memory, b.device.context, kBytes, a.stream));
    OK(cuStreamSynchronize(a.stream));
    for (const size_t at : {size_t{0}, kBytes / 2 + 777, kBytes - kLooked}) {
      const auto there = download<uint8_t>(a.memory + at, kLooked);
      EXPECT(std::memcmp(there.data(), data.data() + at, kLooked) == 0);
    }
    if (round == 0) {
      std::printf("copying\n");
      std::fflush(stdout);
    }
  }
  EXPECT(download<uint8_t>(b.memory, kBytes) == data);
}

SCENARIO(boxes_between_devices) {
  constexpr size_t kPitch = 4096, kRows = 1500, kDepth = 3, kSlice = kPitch * kRows;
  const Side a(0, kSlice * kDepth), b(1, kSlice * kDepth);
  const auto data = pattern(kSlice * kDepth, 3);
  put(b.memory, std::vector<uint8_t>(kSlice * kDepth, 0xee));
  put(a.memory, data);
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = a.memory;
  rows.srcPitch = kPitch;
  rows.srcXInBytes = 16;
  rows.srcY = 2;
  rows.dstDevice = b.memory;
  rows.dstPitch = 3000;
  rows.dstY = 1;
  rows.WidthInBytes = 2999;
  rows.Height = 1400;
  OK(cuMemcpy2DAsync(&rows, b.stream));
  OK(cuStreamSynchronize(b.stream));
  auto seen = download<uint8_t>(b.memory, 3000 * 1500);
  for (size_t y = 0; y < rows.Height; ++y) {
    EXPECT(std::memcmp(&seen[(y + 1) * 3000], &data[(y + 2) * kPitch + 16], rows.WidthInBytes) == 0);
    EXPECT(seen[(y + 1) * 3000 + 2999] == 0xee);
  }
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = a.memory;
  box.srcPitch = kPitch;
  box.srcHeight = kRows;
  box.dstDevice = b.memory;
  box.dstPitch = kPitch;
  box.dstHeight = kRows;
  box.WidthInBytes = 100;
  box.Height = 50;
  box.Depth = kDepth;
  OK(cuMemcpy3D(&box));
  seen = download<uint8_t>(b.memory, kSlice * kDepth);
  for (size_t z = 0; z < kDepth; ++z) {
    for (size_t y = 0; y < box.Height; ++y) {
      EXPECT(std::memcmp(&seen[z * kSlice + y * kPitch], &data[z * kSlice + y * kPitch], 100) == 0);
    }
  }
  // Between the host and the device to which the stream does not belong.
  std::vector<uint8_t> host(2000 * 700, 0);
  CUDA_MEMCPY2D back{};
  back.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  back.srcDevice = a.memory;
  back.srcPitch = kPitch;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = host.data();
  back.dstPitch = 2000;
  back.WidthInBytes = 1999;
  back.Height = 700;
  b.use();
  OK(cuMemcpy2DAsync(&back, b.stream));
  OK(cuStreamSynchronize(b.stream));
  for (size_t y = 0; y < back.Height; ++y) EXPECT(std::memcmp(&host[y * 2000], &data[y * kPitch], 1999) == 0);
}

// Uses memory of device 1 in a stream of device 0, which has no peer access to it.
SCENARIO(copies_of_another_device) {
  constexpr size_t kBytes = 300'000, kLarge = size_t{5} << 20, kPitch = 1000, kRows = kBytes / kPitch;
  const Side a(0, 4096), b(1, kLarge);
  a.use();
  const auto data = pattern(kLarge, 1), other = pattern(kLarge, 2);
  uint8_t* pinned = nullptr;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), kLarge));
  for (const size_t bytes : {size_t{64}, kBytes, kLarge}) {
    const auto sent = pattern(bytes, 3);
    put(b.memory, sent);
    expect_at(b.memory, sent);
    // In stream order: upload, overwrite half of it, download.
    std::memcpy(pinned, other.data(), bytes);
    OK(cuMemcpyHtoDAsync(b.memory, pinned, bytes, a.stream));
    OK(cuMemsetD8Async(b.memory, 9, bytes / 2, a.stream));
    OK(cuMemcpyDtoHAsync(pinned, b.memory, bytes, a.stream));
    OK(cuStreamSynchronize(a.stream));
    EXPECT(holds_only(pinned, bytes / 2, 9));
    EXPECT(std::memcmp(pinned + bytes / 2, other.data() + bytes / 2, bytes - bytes / 2) == 0);
  }
  OK(cuMemsetD8(b.memory, 5, kBytes));
  OK(cuMemcpyDtoD(b.memory + kBytes, b.memory, kBytes));
  expect_at(b.memory + kBytes, std::vector<uint8_t>(kBytes, 5));
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = data.data();
  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.dstDevice = b.memory;
  rows.srcPitch = rows.dstPitch = kPitch;
  rows.WidthInBytes = kPitch - 7;
  rows.Height = kRows;
  OK(cuMemcpy2D(&rows));
  rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = b.memory;
  rows.dstDevice = b.memory + kBytes;
  OK(cuMemcpy2DAsync(&rows, a.stream));
  OK(cuStreamSynchronize(a.stream));
  std::vector<uint8_t> expected(kBytes, 5);
  for (size_t y = 0; y < kRows; ++y) std::memcpy(&expected[y * kPitch], &data[y * kPitch], kPitch - 7);
  expect_at(b.memory, expected);
  expect_at(b.memory + kBytes, expected);
  OK(cuMemFreeHost(pinned));
}
