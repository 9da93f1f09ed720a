// gpupool-bench-moved: works on device memory without a pause, of which it writes a twentieth over and over,
// and says when a round of it took long. Uses only the driver API.
//
//     gpupool-bench-moved BYTES
//
// Prints "working", and "paused START TIME" for each round of 2 ms or more: nanoseconds of the monotonic
// clock. SIGTERM ends it, with status 0 if the memory is as it must be.
#include <algorithm>
#include <cstdint>

#include "tests/bench/program.h"

namespace {

using namespace gpupool::bench;

constexpr size_t kPiece = 256 * 1024;  // written in each round
constexpr size_t kWrittenPart = 20;    // one in so many bytes
constexpr std::chrono::milliseconds kPause{2};
constexpr unsigned kUnwritten = 0x5a5a5a5a;

// True if the memory has this value in its first and its last word.
bool has(CUdeviceptr memory, size_t bytes, unsigned value) {
  unsigned seen[2];
  CHECK(cuMemcpyDtoH(&seen[0], memory, sizeof *seen));
  CHECK(cuMemcpyDtoH(&seen[1], memory + bytes - sizeof *seen, sizeof *seen));
  return seen[0] == value && seen[1] == value;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) / kPiece * kPiece : 0;
  if (bytes < kPiece * kWrittenPart) {
    std::fprintf(stderr, "usage: gpupool-bench-moved BYTES\n");
    return 2;
  }
  end_at_sigterm();
  const CUstream stream = start_cuda();
  CUdeviceptr memory = 0;
  CHECK(cuMemAlloc(&memory, bytes));
  CHECK(cuMemsetD32(memory, kUnwritten, bytes / sizeof(unsigned)));
  CHECK(cuCtxSynchronize());
  const size_t pieces = bytes / kWrittenPart / kPiece;
  std::vector<unsigned> written(pieces, kUnwritten);
  std::printf("working\n");
  std::fflush(stdout);
  auto before = Clock::now();
  for (unsigned round = 1; !ended; ++round) {
    const size_t piece = round % pieces;
    CHECK(cuMemsetD32Async(memory + piece * kPiece, round, kPiece / sizeof(unsigned), stream));
    CHECK(cuStreamSynchronize(stream));
    written[piece] = round;
    const auto now = Clock::now();
    if (now - before >= kPause) report_pause(before, now);
    before = now;
  }
  for (size_t piece = 0; piece < bytes / kPiece; ++piece) {
    const unsigned value = piece < pieces ? written[piece] : kUnwritten;
    if (has(memory + piece * kPiece, kPiece, value)) continue;
    std::fprintf(stderr, "gpupool-bench: piece %zu of the memory is not what was written\n", piece);
    return 1;
  }
  return 0;
}
