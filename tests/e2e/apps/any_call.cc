// Every symbol of the driver, called with arguments that mean nothing.
#include <cudaProfiler.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>

#include "tests/e2e/apps/destroyed_objects.h"
#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

constexpr const char* kSymbols[] = {
#define CUDA_SYMBOL(name, version) #name,
#include "protocol/cuda/symbols.def"
#undef CUDA_SYMBOL
};

using Words = uint64_t[12];
using AnyCall = CUresult (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                             uint64_t, uint64_t, uint64_t, uint64_t);

CUresult call(void* function, const Words& words) {
  return reinterpret_cast<AnyCall>(function)(words[0], words[1], words[2], words[3], words[4], words[5],
                                             words[6], words[7], words[8], words[9], words[10], words[11]);
}

// Addresses that are no device's are the host's to these: they may crash, as any memcpy. And what is
// registered is called later.
bool takes_numbers_for_host_memory(const std::string& name) {
  return name == "cuLogsRegisterCallback" || name == "cuMemcpy" || name == "cuMemcpy_ptds" ||
         name == "cuMemcpyAsync" || name == "cuMemcpyAsync_ptsz";
}

void tell_crash(const char* name, int status) {
  std::printf("%s crashed: %s %d\n", name, WIFSIGNALED(status) ? "signal" : "status",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

// They read from memory where to write: they may crash there.
bool writes_where_memory_says(const std::string& name) {
  return name == "cuPointerGetAttributes" || name == "cuMemRangeGetAttributes";
}

}  // namespace

// Each symbol in a child and a session of its own, so that what a call leaves behind (contexts, sticky
// errors) does not hide the next one. Arguments: "nothing" (zeros), "scratch" (a writable block of zeros for
// every argument).
SCENARIO(any_call) {
  const std::string kind = arguments.at(0);
  unsigned crashed = 0, called = 0;
  for (const char* const symbol : kSymbols) {
    if (takes_numbers_for_host_memory(symbol)) continue;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      alarm(240);  // some numbers are sizes of gigabytes, which take their time on a busy machine
      Device device;
      constexpr size_t kScratch = 1 << 20;
      void* scratch = mmap(nullptr, kScratch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      EXPECT(scratch != MAP_FAILED);
      void* function = dlsym(RTLD_DEFAULT, symbol);
      EXPECT(function != nullptr);
      Words words = {};
      for (size_t w = 0; w < std::size(words); ++w) {
        if (kind == "scratch") words[w] = reinterpret_cast<uint64_t>(scratch) + w * 65536;
      }
      (void)call(function, words);
      // The session is as alive as before, or ended in an error: it has not taken the server along.
      (void)cuCtxSynchronize();
      std::_Exit(0);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    called += 1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++crashed;
    tell_crash(symbol, status);
  }
  std::printf("%s: %u symbols, %u crashed\n", kind.c_str(), called, crashed);
}

// --- The calls that are served, with arguments made by type ---

namespace {

template <class T>
concept Complete = requires { sizeof(T); };

const DestroyedObjects* stale = nullptr;  // handed out instead of numbers

// Opaque handles never given out or destroyed, numbers as given, and writable memory where a function wants
// to read or write.
template <class T>
T make_argument(uint64_t number, std::byte*& scratch) {
  if constexpr (!std::is_const_v<T> && (std::is_pointer_v<T> || std::is_integral_v<T>)) {
    T handle{};
    if (stale && stale->give(handle)) return handle;
  }
  if constexpr (std::is_pointer_v<T>) {
    using Target = std::remove_pointer_t<T>;
    if constexpr (std::is_function_v<Target>) {
      return nullptr;
    } else if constexpr (std::is_void_v<std::remove_cv_t<Target>> || Complete<std::remove_cv_t<Target>>) {
      scratch += 65536;
      return reinterpret_cast<T>(scratch);
    } else {
      return reinterpret_cast<T>(number);
    }
  } else if constexpr (std::is_class_v<T>) {
    T made{};
    std::memcpy(&made, &number, std::min(sizeof made, sizeof number));
    return made;
  } else {
    return static_cast<T>(number);
  }
}

template <class... A>
CUresult call_by_type(CUresult (*function)(A...), [[maybe_unused]] uint64_t number,
                      [[maybe_unused]] std::byte* scratch) {
  return std::apply(function, std::tuple<A...>{make_argument<A>(number, scratch)...});
}

// Every word of the memory that functions read is a handle or an address that was one, in turn.
void fill_with(const DestroyedObjects& destroyed, std::byte* scratch, size_t size) {
  constexpr size_t kWords = sizeof destroyed / sizeof(uint64_t);
  uint64_t words[kWords];
  std::memcpy(words, &destroyed, sizeof words);
  for (size_t at = 0; at < size / sizeof(uint64_t); ++at)
    std::memcpy(scratch + at * sizeof(uint64_t), &words[at % kWords], sizeof(uint64_t));
}

struct Row {
  const char* name;
  CUresult (*call)(uint64_t number, std::byte* scratch);
};
#define ROW(name) \
  {#name, [](uint64_t number, std::byte* scratch) { return call_by_type(&::name, number, scratch); }},
#define CUDA_CALL(id, name, ...) ROW(name)
#define CUDA_CALL_PTSZ CUDA_CALL
#define CUDA_CALL_CUSTOM_EXPORT CUDA_CALL
#define CUDA_BY_HAND(name) ROW(name)
constexpr Row kRows[] = {
#include "protocol/cuda/calls.def"
};
#undef CUDA_CALL
#undef CUDA_CALL_PTSZ
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
#undef ROW

constexpr int kUsedAtExit = 100;  // apart from what other ends of a program give

constexpr uint64_t kNumbers[] = {0, 1, 3, 0x7fffffff, 0xffffffff, 0x00007fffdeadbee0, 1ull << 62, ~0ull};

// Calls a row with the numbers from `first` on, in a child and a session of its own, until a call leaves an
// error there, with which later calls would fail. The child exits with kUsedAtExit and the count of the
// numbers that have been used.
int call_with_numbers(const Row& row, size_t first, bool with_stale, bool in_memory) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(240);  // some numbers are sizes of gigabytes, which take their time on a busy machine
    Device device;
    constexpr size_t kScratch = 1 << 20;
    void* scratch = mmap(nullptr, kScratch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(scratch != MAP_FAILED);
    std::unique_ptr<DestroyedObjects> destroyed;
    if (with_stale) destroyed = std::make_unique<DestroyedObjects>();
    stale = destroyed.get();
    size_t used = first;
    for (bool good = true; good && used < std::size(kNumbers);) {
      std::memset(scratch, 0, kScratch);
      if (in_memory) fill_with(*destroyed, static_cast<std::byte*>(scratch), kScratch);
      (void)row.call(kNumbers[used++], static_cast<std::byte*>(scratch));
      good = cuCtxSynchronize() == CUDA_SUCCESS;
    }
    std::_Exit(kUsedAtExit + static_cast<int>(used));
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

// "stale" and "stale_in_memory": handles are those of destroyed objects, given as they are, or wherever a
// function reads.
SCENARIO(any_row) {
  const bool with_stale = !arguments.empty();
  const bool in_memory = with_stale && arguments[0] == "stale_in_memory";
  unsigned crashed = 0;
  for (const Row& row : kRows) {
    if (takes_numbers_for_host_memory(row.name) || (in_memory && writes_where_memory_says(row.name)))
      continue;
    for (size_t used = 0; used < std::size(kNumbers);) {
      const int status = call_with_numbers(row, used, with_stale, in_memory);
      const bool told = WIFEXITED(status) && WEXITSTATUS(status) > kUsedAtExit;
      used = told ? static_cast<size_t>(WEXITSTATUS(status) - kUsedAtExit) : used + 1;
      if (told) continue;
      ++crashed;
      tell_crash(row.name, status);
    }
  }
  std::printf("%zu rows, %u crashed\n", std::size(kRows), crashed);
}
