// Helpers shared by the programs of this folder. Each program runs its cases one after the other, compares
// every result with one computed on the CPU, prints one line per case, and PASSED at the end.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

inline int failures = 0;

inline void check(bool good, const char* what, int line) {
  if (good) return;
  std::printf("line %d: %s\n", line, what);
  ++failures;
}
#define CHECK(condition) check((condition), #condition, __LINE__)
#define OK(call)                                                                     \
  do {                                                                               \
    const cudaError_t error_ = (call);                                               \
    if (error_ != cudaSuccess) {                                                     \
      std::printf("line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(error_)); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

// Pseudo-random numbers (xorshift), the same in every run.
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    return state_ ^= state_ << 5;
  }
  uint32_t below(uint32_t limit) { return next() % limit; }
  float unit() { return static_cast<float>(next() >> 8) * 0x1p-24f; }

 private:
  uint32_t state_;
};

inline std::vector<uint32_t> numbers(size_t count, uint32_t seed, uint32_t below = 0) {
  Random random(seed);
  std::vector<uint32_t> values(count);
  for (auto& value : values) value = below ? random.below(below) : random.next();
  return values;
}
inline std::vector<float> reals(size_t count, uint32_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (auto& value : values) value = random.unit() * 2 - 1;
  return values;
}

// Device memory, zeroed or initialized with a copy of a vector.
template <typename T>
class Device {
 public:
  explicit Device(size_t count) : count_(count) {
    OK(cudaMalloc(&data_, count * sizeof(T)));
    OK(cudaMemset(data_, 0, count * sizeof(T)));
  }
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    OK(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  T* get() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    OK(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

inline bool close(double a, double b, double tolerance) {
  return std::fabs(a - b) <= tolerance * (1 + std::fabs(b));
}

struct Case {
  const char* name;
  void (*run)();
};

template <size_t kCount>
int run_cases(const Case (&cases)[kCount]) {
  for (const Case& one : cases) {
    const int before = failures;
    one.run();
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    std::printf("%s: %s\n", one.name, failures == before ? "right" : "WRONG");
    std::fflush(stdout);
  }
  std::puts(failures ? "FAILED" : "PASSED");
  return failures != 0;
}
