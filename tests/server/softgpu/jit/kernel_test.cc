// Runs nvcc's code of kernels.cu (optimized, -G, -rdc and fast-math) on the real executor and compares the
// results with C++.
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <sstream>

#include "server/softgpu/exec/grid.h"
#include "server/softgpu/jit/analysis.h"
#include "server/softgpu/jit/program.h"
#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/ptx/parser.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

GridExecutor& executor() {
  static auto instance = GridExecutor::create(2, nullptr);
  return *instance;
}

uint64_t device_bytes(uint64_t size) {
  REQUIRE(reserve_range());
  return allocate_host((size + 4095) / 4096 * 4096, 4096).value();
}

template <typename T>
T* device(const std::vector<T>& values) {
  auto* memory = reinterpret_cast<T*>(device_bytes(values.size() * sizeof(T) + 1));
  std::copy(values.begin(), values.end(), memory);
  return memory;
}

std::string text_of(const std::string& variant) {
  std::ifstream file(std::string(KERNEL_FOLDER) + "/kernels_" + variant + ".ptx");
  REQUIRE(file);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class Module {
 public:
  explicit Module(const std::string& variant, CompileOptions options = {}) {
    std::string content = text_of(variant);
    std::string_view view = content;
    auto result = compile({&view, 1}, options);
    if (auto* error = std::get_if<CompileError>(&result)) FAIL(error->message);
    program_ = std::get<std::shared_ptr<const Program>>(result);
    data_ = device_bytes(program_->data_bytes() + 1);
    program_->write_data({reinterpret_cast<std::byte*>(data_), program_->data_bytes()}, data_);
  }
  template <typename T>
  T& global(const char* name) const {
    const GlobalInfo* info = program_->find_global(name);
    REQUIRE(info);
    return *reinterpret_cast<T*>(data_ + info->offset);
  }
  bool synchronises(const char* name) const { return program_->find_kernel(name)->synchronises; }

  template <typename... Arguments>
  GridResult launch(const char* name, std::array<uint32_t, 3> grid, std::array<uint32_t, 3> block,
                    uint32_t shared, Arguments... arguments) const {
    const KernelInfo* kernel = program_->find_kernel(name);
    REQUIRE(kernel);
    auto code = program_->code(*kernel);
    if (auto* error = std::get_if<CompileError>(&code)) FAIL(error->message);
    GridRequest request;
    request.code = std::get<KernelCode>(code);
    request.kernel_name = name;
    std::copy(grid.begin(), grid.end(), request.grid_dim);
    std::copy(block.begin(), block.end(), request.block_dim);
    request.static_shared_bytes = kernel->static_shared_bytes;
    request.dynamic_shared_bytes = shared;
    request.local_bytes = kernel->local_bytes;
    request.module_data = data_;
    request.params.resize(kernel->parameter_bytes);
    size_t index = 0;
    auto put = [&](const auto& value) {
      REQUIRE(kernel->parameters.at(index).size == sizeof value);
      std::memcpy(request.params.data() + kernel->parameters[index++].offset, &value, sizeof value);
    };
    (put(arguments), ...);
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    GridResult result;
    executor().submit(std::move(request), [&](GridResult r) {
      std::lock_guard lock(mutex);
      result = std::move(r);
      done = true;
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
    return result;
  }

 private:
  std::shared_ptr<const Program> program_;
  uint64_t data_ = 0;
};

#define CHECK_RUNS(result)                     \
  do {                                         \
    GridResult outcome = (result);             \
    INFO(outcome.detail);                      \
    REQUIRE(outcome.fault == FaultKind::none); \
  } while (false)

struct Box {
  float weight[5];
  int count;
};

int ackermann(int m, int n) {
  return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

int language(int i, const Box& box, const Box& fixed, int n) {
  const float table[] = {1, 2, 4, 8};
  int result =
      (i % 2 ? i * i * 3 : i * 3 + 1) + (n & 1 ? i * 2 : i + 1) + ackermann(2, i % 4) + ((i * 7) % 16) * i;
  if (i < 5)
    result += 1000 * (i + 1);
  else if (i == 5)
    result ^= 77;
  else
    result -= 1;
  result += static_cast<int>(box.weight[i % 5] * table[i % 4]) + fixed.count +
            static_cast<int>(fixed.weight[(i + 1) % 5]);
  return static_cast<int>(static_cast<long long>(result) * 1000000007 / (i + 3) % 1000003);
}

void run_all(const std::string& variant) {
  Module module(variant);
  std::vector<float> a(1000), b(1000);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i) * 0.5f;
    b[i] = static_cast<float>(i % 7) - 3;
  }
  {
    auto* c = device(std::vector<float>(1000));
    CHECK_FALSE(module.synchronises("vector_add"));
    CHECK_RUNS(module.launch("vector_add", {8, 1, 1}, {128, 1, 1}, 0, device(a), device(b), c, 1000));
    for (size_t i = 0; i < a.size(); ++i) CHECK(c[i] == a[i] + b[i]);
    CHECK(module.launch("vector_add", {8, 1, 1}, {128, 1, 1}, 0, device(a), uint64_t{0}, c, 1000).fault ==
          FaultKind::illegal_address);
  }
  {
    constexpr int kN = 24;
    auto* c = device(std::vector<float>(kN * kN));
    CHECK_RUNS(module.launch("multiply", {3, 3, 1}, {8, 8, 1}, 0, device(a), device(b), c, kN));
    for (int y = 0; y < kN; ++y)
      for (int x = 0; x < kN; ++x) {
        float sum = 0;
        for (int k = 0; k < kN; ++k)
          sum = std::fma(a[static_cast<size_t>(y * kN + k)], b[static_cast<size_t>(k * kN + x)], sum);
        CHECK(c[y * kN + x] == sum);
      }
  }
  {
    std::vector<int> values(5000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i * 7919 % 10007) - 5000;
    auto* sum = device(std::vector<int>{0, INT32_MIN});
    CHECK_RUNS(module.launch("reduce", {4, 1, 1}, {256, 1, 1}, 0, device(values), 5000, sum, sum + 1));
    CHECK(sum[0] == std::accumulate(values.begin(), values.end(), 0));
    CHECK(sum[1] == *std::max_element(values.begin(), values.end()));
  }
  {
    std::vector<int> values(200);
    std::iota(values.begin(), values.end(), 3);
    auto* memory = device(values);
    CHECK_RUNS(module.launch("scan", {1, 1, 1}, {200, 1, 1}, 800, memory, 200));
    std::partial_sum(values.begin(), values.end(), values.begin());
    CHECK(std::vector<int>(memory, memory + 200) == values);
  }
  {
    auto* out = device(std::vector<int>(64));
    Box box{{1.5f, 2.5f, -3.5f, 4, 5}, 6}, fixed{{10, 20, 30, 40, 50}, 60};
    for (int n : {0, 1}) {
      CHECK_RUNS(module.launch("language", {1, 1, 1}, {64, 1, 1}, 0, out, box, fixed, n));
      for (int i = 0; i < 64; ++i) CHECK(out[i] == language(i, box, fixed, n));
    }
    CHECK(module.global<int>("calls") == 128);
  }
  {
    std::vector<double> in(32);
    for (size_t i = 0; i < in.size(); ++i) in[i] = 0.1 + 0.21 * static_cast<double>(i);
    auto* out = device(std::vector<double>(32 * 24));
    CHECK_RUNS(module.launch("mathematics", {1, 1, 1}, {32, 1, 1}, 0, device(in), out));
    for (size_t i = 0; i < in.size(); ++i) {
      double x = in[i];
      double expected[] = {std::sin(x),        std::cos(x),      std::exp(x),       std::log(x),
                           std::pow(x, 1.5),   std::sqrt(x),     std::tan(x),       std::atan2(x, 2.0),
                           std::fmod(x, 0.7),  std::cbrt(x),     std::erf(x),       std::tgamma(x),
                           std::sin(x),        std::exp(x),      std::log(x),       std::pow(x, 2.5),
                           std::tanh(x),       1 / std::sqrt(x), x * x + 1,         x,
                           std::hypot(x, 3.0), std::floor(x),    std::nearbyint(x), 1 / x};
      for (size_t j = 0; j < 24; ++j) {
        INFO("function " << j << " of " << x);
        double tolerance = j < 12 || j > 19 ? 1e-13 : j == 19 ? 1e-3 : variant == "fast" ? 1e-4 : 2e-6;
        CHECK(std::fabs(out[i * 24 + j] - expected[j]) <= tolerance * std::max(1.0, std::fabs(expected[j])));
      }
    }
  }
  {
    auto* cells = device(std::vector<int>{0, 0});
    CHECK_RUNS(module.launch("spin_lock", {4, 1, 1}, {96, 1, 1}, 0, cells, cells + 1));
    CHECK(cells[1] == 4 * 96);
    auto* flags = device(std::vector<int>{0, 0, 0});
    CHECK_RUNS(module.launch("signal", {1, 1, 1}, {64, 1, 1}, 0, flags, flags + 2));
    CHECK(flags[2] == 42);
    auto* largest = device(std::vector<float>{-1});
    CHECK_FALSE(module.synchronises("float_maximum"));
    CHECK_RUNS(module.launch("float_maximum", {4, 1, 1}, {250, 1, 1}, 0, device(a), largest));
    CHECK(*largest == a.back());
  }
  {
    auto* out = device(std::vector<int>(65));
    CHECK_RUNS(module.launch("groups", {1, 1, 1}, {64, 1, 1}, 0, out));
    for (int i = 0; i < 64; ++i) {
      int sum = 28 + i / 8 * 64 + 400;
      if (i % 3 == 0) sum += 1000 * 11;  // multiples of 3 below 32, and from 32 to 63
      CHECK(out[i] == sum);
    }
    CHECK(out[64] == 33);
  }
  {
    take_printf_output();
    CHECK_RUNS(module.launch("print", {1, 1, 1}, {2, 1, 1}, 0, 7, uint64_t{0}));
    CHECK(take_printf_output() == "7 words 2.50\n8 words 2.50\n");
    CHECK(module.launch("fails", {1, 1, 1}, {4, 1, 1}, 0, 4).fault == FaultKind::none);
    CHECK(module.launch("fails", {1, 1, 1}, {5, 1, 1}, 0, 4).fault == FaultKind::assertion);
    auto* out = device(std::vector<int>(40));
    CHECK_RUNS(module.launch("heap", {1, 1, 1}, {40, 1, 1}, 0, out));
    for (int i = 0; i < 40; ++i) CHECK(out[i] == i * (i + 1) / 2);
  }
  {
    std::vector<uint32_t> base(32);
    std::vector<uint64_t> modulus(32), expected(32);
    for (size_t i = 0; i < 32; ++i) {
      base[i] = static_cast<uint32_t>(i * 2654435761u + 7);
      modulus[i] = 0xFFFFFFFFFFFFFFC5ull - i * 1234567;
      unsigned __int128 result = 1, power = base[i];
      for (uint32_t e = 65537; e; e >>= 1) {
        if (e & 1) result = result * power % modulus[i];
        power = power * power % modulus[i];
      }
      expected[i] = static_cast<uint64_t>(result);
    }
    auto* out = device(std::vector<uint64_t>(32));
    CHECK_RUNS(
        module.launch("modular_power", {1, 1, 1}, {32, 1, 1}, 0, device(base), 65537u, device(modulus), out));
    CHECK(std::vector<uint64_t>(out, out + 32) == expected);
  }
}

// Returns the number of convergence points that the analysis finds in each kernel.
std::map<std::string, long> points_of(const std::string& variant) {
  const std::string text = text_of(variant);
  auto file = ptx::parse(text);
  REQUIRE(std::holds_alternative<ptx::File>(file));
  std::map<std::string, long> points;
  for (const ptx::Function& function : std::get<ptx::File>(file).functions) {
    if (!function.has_body) continue;
    const FunctionFacts facts = analyse(function, Convergence::found);
    points[std::string(function.name)] = std::count(facts.converges.begin(), facts.converges.end(), true);
  }
  return points;
}

void run_lock_step(const std::string& variant) {
  Module module(variant);
  std::vector<int> values(512);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i * 7919 % 101);
  auto* sums = device(std::vector<int>(4));
  CHECK_RUNS(module.launch("warp_sum", {4, 1, 1}, {128, 1, 1}, 0, device(values), sums));
  for (int b = 0; b < 4; ++b)
    CHECK(sums[b] == std::accumulate(values.begin() + b * 128, values.begin() + b * 128 + 128, 0));

  auto* scanned = device(values);
  CHECK_RUNS(module.launch("warp_scan", {1, 1, 1}, {128, 1, 1}, 512, scanned, 5));
  for (int t = 0; t < 128; ++t) {
    const auto first = values.begin() + t / 32 * 32;
    CHECK(scanned[t] == std::accumulate(first, values.begin() + t + 1, 0) +
                            1000 * std::accumulate(values.begin() + t, first + 32, 0));
  }
}

}  // namespace

TEST_CASE("kernels as nvcc compiles them by default") {
  run_all("plain");
}
TEST_CASE("kernels compiled for debugging (-G)") {
  run_all("debug");
}
TEST_CASE("kernels compiled as relocatable code (-rdc=true)") {
  run_all("rdc");
}
TEST_CASE("kernels compiled with -use_fast_math") {
  run_all("fast");
}

TEST_CASE("warp-synchronous code computes the same as on a GPU") {
  for (const char* variant : {"plain", "fast", "debug"}) {
    INFO(variant);
    run_lock_step(variant);
  }
  // Without volatile, in optimized code.
  Module module("plain");
  std::vector<float> values(32);
  std::iota(values.begin(), values.end(), 1.0f);
  auto* numbers = device(values);
  CHECK_RUNS(module.launch("butterfly", {1, 1, 1}, {32, 1, 1}, 0, numbers));
  for (int t = 0; t < 32; ++t) CHECK(numbers[t] == 528 + 32);
  CompileOptions serial;
  serial.converge_warps = Convergence::none;
  auto* wrong = device(values);
  CHECK_RUNS(Module("plain", serial).launch("butterfly", {1, 1, 1}, {32, 1, 1}, 0, wrong));
  CHECK_FALSE(std::equal(wrong, wrong + 32, numbers));
  auto* handed = device(std::vector<int>(128));
  CHECK_RUNS(module.launch("hand_out", {1, 1, 1}, {128, 1, 1}, 0, handed));
  for (int t = 0; t < 128; ++t) CHECK(handed[t] == 7 + t / 32);
  auto* seen = device(std::vector<int>(4 * 128));
  CHECK_RUNS(module.launch("count_by_warp", {1, 1, 1}, {128, 1, 1}, 0, seen, 4));
  for (int i = 0; i < 4 * 128; ++i) CHECK(seen[i] == i / 128 * 16);
  CompileOptions everywhere;
  everywhere.converge_warps = Convergence::everywhere;
  CHECK_RUNS(Module("plain", everywhere).launch("count_by_warp", {1, 1, 1}, {128, 1, 1}, 0, seen, 4));
  for (int i = 0; i < 4 * 128; ++i) CHECK(seen[i] == i / 128 * 16);
  for (int t = 0; t < 32; ++t) values[t] = static_cast<float>(t * 13 % 32);
  auto* order = device(std::vector<int>(32));
  CHECK_RUNS(module.launch("sort_by_votes", {1, 1, 1}, {32, 1, 1}, 0, device(values), order));
  for (int t = 0; t < 32; ++t) CHECK(values[order[t]] == t);
  std::vector<int> starts(32, 31);
  starts[0] = 5;
  auto* walked = device(std::vector<int>(32));
  CHECK_RUNS(module.launch("walk_together", {1, 1, 1}, {32, 1, 1}, 0, device(starts), walked));
  int sum = 0;
  for (int i = 5, number = 6; i < 31; ++i, number += i + 1) sum += number;
  CHECK(std::vector<int>(walked, walked + 32) == std::vector<int>(32, sum));

  constexpr int kPairs = 16, kRounds = 31;
  auto* table = device(std::vector<int>(2 * kPairs * kRounds));
  CHECK_RUNS(module.launch("tournament", {1, 1, 1}, {kPairs, 1, 1}, 0, table, kRounds));
  for (const int* now = table; now != table + 2 * kPairs * (kRounds - 1); now += 2 * kPairs) {
    const int* const next = now + 2 * kPairs;
    std::vector<int> expected{0, now[kPairs]};
    expected.insert(expected.end(), now + 1, now + kPairs - 1);
    expected.insert(expected.end(), now + kPairs + 1, now + 2 * kPairs);
    expected.push_back(now[kPairs - 1]);
    CHECK(std::vector<int>(next, next + 2 * kPairs) == expected);
  }
}

TEST_CASE("kernels without communication inside a warp have no points of convergence") {
  auto points = points_of("plain");
  for (const char* none : {"vector_add", "multiply", "reduce", "scan", "groups", "own_columns", "own_rows",
                           "own_pairs", "running_sums", "counters"}) {
    INFO(none);
    CHECK(points.at(none) == 0);
  }
  for (const char* some :
       {"warp_sum", "warp_scan", "butterfly", "hand_out", "sort_by_votes", "walk_together", "tournament"}) {
    INFO(some);
    CHECK(points.at(some) > 0);
  }
  Module module("plain");
  CHECK_FALSE(module.synchronises("own_columns"));  // plain loops
  CHECK_FALSE(module.synchronises("counters"));
  CHECK_FALSE(module.synchronises("running_sums"));
}
