// gpupool-bench-survive: the programs that gpupool-bench --suite survive measures; they use only the driver
// API.
//
//     gpupool-bench-survive silence COUNT      cuts this process's connections, and prints
//                                              "silence_ms TIME" for each cut: until a call that waits for
//                                              the server has returned
//     gpupool-bench-survive numbering ROUNDS   makes the same calls on the devices 0 and 1, which are on two
//                                              servers, by turns; prints "NAME_0 TIME" and "NAME_1 TIME" in
//                                              us, of the fastest tenth of the rounds
//     gpupool-bench-survive pulse MS           launches a kernel every MS milliseconds and waits for it;
//                                              prints "working", and "paused START TIME" (nanoseconds of the
//                                              monotonic clock) for each launch of 1 ms or more, until
//                                              SIGTERM ends it
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "tests/bench/program.h"
#include "tests/support/own_connections.h"

namespace {

using namespace gpupool::bench;

constexpr int kCallsBetweenCuts = 20;

void silence(int cuts) {
  const CUstream stream = start_cuda();
  for (int cut = 0; cut < cuts; ++cut) {
    for (int i = 0; i < kCallsBetweenCuts; ++i) CHECK(cuStreamQuery(stream));
    const auto found = gpupool::testing::own_connections();
    if (found.empty()) {
      std::fprintf(stderr, "gpupool-bench: this process has no connection to cut\n");
      std::exit(1);
    }
    const auto begin = Clock::now();
    gpupool::testing::cut(found);
    CHECK(cuStreamQuery(stream));
    report("silence_ms", microseconds(begin) * 1e-3);
  }
  CHECK(cuStreamDestroy(stream));
}

// One device with what the measured calls need.
struct Side {
  static constexpr size_t kLarge = size_t{16} << 20, kSmall = 4096;
  static constexpr const char* kKernel =
      ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";

  explicit Side(int number) {
    CUdevice device = 0;
    CUmodule module = nullptr;
    CHECK(cuDeviceGet(&device, number));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuModuleLoadData(&module, kKernel));
    CHECK(cuModuleGetFunction(&function, module, "nothing"));
    CHECK(cuMemAlloc(&memory, kLarge));
    CHECK(cuMemHostAlloc(&pinned, kLarge, 0));
    std::memset(pinned, 1, kLarge);
  }
  // The time of `count` calls and of the wait for all of them, for one call.
  double time(int count, const std::function<CUresult()>& call) const {
    CHECK(cuCtxSetCurrent(context));
    const auto begin = Clock::now();
    for (int i = 0; i < count; ++i) CHECK(call());
    CHECK(cuStreamSynchronize(stream));
    return microseconds(begin) / count;
  }

  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  std::vector<char> pageable = std::vector<char>(kLarge, 1);
};

struct Measured {
  const char* name;
  int calls;
  std::function<CUresult(Side&)> call;
};
const Measured kMeasured[] = {
    {"null_call", 20, [](Side& on) { return cuStreamQuery(on.stream); }},
    {"launch", 500,
     [](Side& on) { return cuLaunchKernel(on.function, 1, 1, 1, 1, 1, 1, 0, on.stream, nullptr, nullptr); }},
    {"h2d_4_kib", 50,
     [](Side& on) { return cuMemcpyHtoDAsync(on.memory, on.pinned, Side::kSmall, on.stream); }},
    {"h2d_16_mib", 1,
     [](Side& on) { return cuMemcpyHtoDAsync(on.memory, on.pinned, Side::kLarge, on.stream); }},
    {"d2h_16_mib", 1,
     [](Side& on) { return cuMemcpyDtoHAsync(on.pinned, on.memory, Side::kLarge, on.stream); }},
    {"pageable_h2d_16_mib", 1,
     [](Side& on) { return cuMemcpyHtoD(on.memory, on.pageable.data(), Side::kLarge); }},
};

// The time that the fastest tenth of the rounds did not exceed: others were disturbed by other programs.
double undisturbed(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[(times.size() - 1) / 10];
}

// By turns within one process, so that both sides meet the same conditions.
void numbering(int rounds) {
  CHECK(cuInit(0));
  Side sides[2] = {Side(0), Side(1)};
  for (const Measured& measured : kMeasured) {
    std::vector<double> times[2];
    for (int round = 0; round <= (measured.calls == 1 ? rounds : 20 * rounds); ++round) {
      for (int turn = 0; turn < 2; ++turn) {
        const int which = (round + turn) % 2;
        Side& side = sides[which];
        const double time = side.time(measured.calls, [&] { return measured.call(side); });
        if (round != 0) times[which].push_back(time);  // the first one opens connections and touches memory
      }
    }
    for (const int which : {0, 1})
      report((measured.name + ("_" + std::to_string(which))).c_str(), undisturbed(times[which]));
  }
}

void pulse(int interval_ms) {
  constexpr std::chrono::milliseconds kLong{1};
  end_at_sigterm();
  CHECK(cuInit(0));
  const Side side(0);
  std::printf("working\n");
  std::fflush(stdout);
  while (!ended) {
    const auto begin = Clock::now();
    CHECK(cuLaunchKernel(side.function, 1, 1, 1, 1, 1, 1, 0, side.stream, nullptr, nullptr));
    CHECK(cuStreamSynchronize(side.stream));
    if (const auto now = Clock::now(); now - begin >= kLong) report_pause(begin, now);
    std::this_thread::sleep_for(std::chrono::milliseconds(interval_ms));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  const int count = argc == 3 ? std::atoi(argv[2]) : 0;
  if (count <= 0 || (what != "silence" && what != "numbering" && what != "pulse")) {
    std::fprintf(stderr, "usage: gpupool-bench-survive silence COUNT | numbering ROUNDS | pulse MS\n");
    return 2;
  }
  if (what == "silence")
    silence(count);
  else if (what == "numbering")
    numbering(count);
  else
    pulse(count);
  return 0;
}
