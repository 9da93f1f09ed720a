// Runs a fuzz target (LLVMFuzzerTestOneInput) for a bounded time without libFuzzer: mutates the seeds of one
// folder at random, without coverage. Each run uses and prints another random seed; --seed repeats a run. The
// current input is kept in a file, so that a crash leaves it behind.
//
//   fuzz_x [--seconds N] [--seed N] SEED_FOLDER [INPUT...]
//
// With INPUT files, runs only those, to reproduce a crash.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;
namespace fs = std::filesystem;

constexpr size_t kMaxInput = 16 * 1024;
// Boundary values of integers.
constexpr uint64_t kInteresting[] = {0,
                                     1,
                                     2,
                                     0x7f,
                                     0x80,
                                     0xff,
                                     0x7fff,
                                     0xffff,
                                     0x10000,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     0x100000000,
                                     0x7fffffffffffffff,
                                     0xffffffffffffffff};

Input read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Input(std::istreambuf_iterator<char>(file), {});
}

// Does not use std::chrono, which targets may replace (virtual_time.h).
double seconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Mutator {
 public:
  Mutator(std::vector<Input> seeds, uint64_t seed) : seeds_(std::move(seeds)), random_(seed) {
    if (seeds_.empty()) seeds_.emplace_back();
  }
  Input next() {
    Input input = seeds_[below(seeds_.size())];
    for (size_t i = below(8); i-- > 0;) mutate(input);
    if (input.size() > kMaxInput) input.resize(kMaxInput);
    return input;
  }

 private:
  size_t below(size_t limit) { return limit ? random_() % limit : 0; }
  void mutate(Input& input) {
    const size_t at = below(input.size() + 1);
    const auto place = input.begin() + static_cast<ptrdiff_t>(at);
    switch (below(7)) {
      case 0:  // flip a bit
        if (at < input.size()) input[at] ^= static_cast<uint8_t>(1u << below(8));
        return;
      case 1:  // change a byte
        if (at < input.size()) input[at] = static_cast<uint8_t>(random_());
        return;
      case 2:  // truncate
        input.resize(at);
        return;
      case 3: {  // remove a part
        const size_t length = std::min(below(64), input.size() - at);
        input.erase(place, place + static_cast<ptrdiff_t>(length));
        return;
      }
      case 4: {  // overwrite with an interesting number
        const uint64_t number = kInteresting[below(std::size(kInteresting))];
        const size_t width = size_t{1} << below(4);
        if (at + width <= input.size()) std::memcpy(input.data() + at, &number, width);
        return;
      }
      case 5: {  // copy a part of another seed
        const Input& other = seeds_[below(seeds_.size())];
        const size_t from = below(other.size() + 1);
        const size_t length = std::min(below(256), other.size() - from);
        const Input piece(other.begin() + static_cast<ptrdiff_t>(from),
                          other.begin() + static_cast<ptrdiff_t>(from + length));
        input.insert(place, piece.begin(), piece.end());
        return;
      }
      default: {  // random bytes
        Input piece(below(16));
        for (auto& byte : piece) byte = static_cast<uint8_t>(random_());
        input.insert(place, piece.begin(), piece.end());
      }
    }
  }

  std::vector<Input> seeds_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  long seconds = 10;
  uint64_t seed = std::random_device()();
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--seconds" && i + 1 < argc)
      seconds = std::atol(argv[++i]);
    else if (word == "--seed" && i + 1 < argc)
      seed = std::strtoull(argv[++i], nullptr, 10);
    else
      words.push_back(word);
  }
  if (words.empty() || !fs::is_directory(words[0])) {
    std::fprintf(stderr, "usage: %s [--seconds N] [--seed N] SEED_FOLDER [INPUT...]\n", argv[0]);
    return 2;
  }
  for (size_t i = 1; i < words.size(); ++i) {
    const Input input = read(words[i]);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  if (words.size() > 1) return 0;

  std::printf("--seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);  // must be visible before a crash

  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(words[0])) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> seeds;
  for (const auto& file : files) seeds.push_back(read(file));
  for (const Input& input : seeds) LLVMFuzzerTestOneInput(input.data(), input.size());

  const std::string current = std::string(argv[0]) + ".input";
  Mutator mutator(std::move(seeds), seed);
  const double end = seconds_now() + static_cast<double>(seconds);
  uint64_t runs = 0;
  for (; seconds_now() < end; ++runs) {
    const Input input = mutator.next();
    {
      std::ofstream file(current, std::ios::binary | std::ios::trunc);
      file.write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  fs::remove(current);
  std::printf("%llu inputs, none went wrong\n", static_cast<unsigned long long>(runs));
  return 0;
}
