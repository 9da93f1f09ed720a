// Calls every symbol of the driver with meaningless arguments.
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
#include "protocol/driver/symbols.def"
#undef CUDA_SYMBOL
};

using Words = uint64_t[12];
using AnyCall = CUresult (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                             uint64_t, uint64_t, uint64_t, uint64_t);

CUresult call(void* function, const Words& words) {
  return reinterpret_cast<AnyCall>(function)(words[0], words[1], words[2], words[3], words[4], words[5],
                                             words[6], words[7], words[8], words[9], words[10], words[11]);
}

// These calls treat numbers that are no device addresses as host addresses and may crash, like any memcpy.
// cuLogsRegisterCallback would call its argument later.
bool takes_numbers_for_host_memory(const std::string& name) {
  return name == "cuLogsRegisterCallback" || name == "cuMemcpy" || name == "cuMemcpy_ptds" ||
         name == "cuMemcpyAsync" || name == "cuMemcpyAsync_ptsz";
}

void tell_crash(const char* name, int status) {
  std::printf("%s crashed: %s %d\n", name, WIFSIGNALED(status) ? "signal" : "status",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

// These calls read output addresses from memory and may crash when they write there.
bool writes_where_memory_says(const std::string& name) {
  return name == "cuPointerGetAttributes" || name == "cuMemRangeGetAttributes";
}

}  // namespace

// Calls each symbol in a separate child process with its own session, so that side effects (contexts, sticky
// errors) do not hide later failures. Arguments: "nothing" (all zero), "scratch" (a writable block of zeros
// for every argument).
SCENARIO(any_call) {
  const std::string kind = arguments.at(0);
  unsigned crashed = 0, called = 0;
  for (const char* const symbol : kSymbols) {
    if (takes_numbers_for_host_memory(symbol)) continue;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      alarm(240);  // some numbers are sizes of gigabytes, which take long on a busy machine
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
      // The session works or returns an error; the server must not crash.
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

// --- The supported calls, with arguments of the correct types ---

namespace {

template <class T>
concept Complete = requires { sizeof(T); };

const DestroyedObjects* stale = nullptr;  // if set, its handles are used instead of numbers

// Makes an argument: invalid opaque handles (or destroyed ones), the number for integers, and writable memory
// for pointers to data.
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

// Fills the memory that functions read with handles and addresses of destroyed objects, in turn.
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
#define CUDA_CALL_CUSTOM_EXPORT CUDA_CALL
#define CUDA_BY_HAND(name) ROW(name)
constexpr Row kRows[] = {
#include "protocol/calls/calls.def"
};
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
#undef ROW

constexpr int kUsedAtExit = 100;  // differs from other exit statuses

constexpr uint64_t kNumbers[] = {0, 1, 3, 0x7fffffff, 0xffffffff, 0x00007fffdeadbee0, 1ull << 62, ~0ull};

// Calls a row with the numbers from `first` on, in a child process with its own session, until a call leaves
// an error that would make later calls fail. The child exits with kUsedAtExit plus the number of used
// numbers.
int call_with_numbers(const Row& row, size_t first, bool with_stale, bool in_memory) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(240);  // some numbers are sizes of gigabytes, which take long on a busy machine
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

// Arguments: "stale" passes handles of destroyed objects; "stale_in_memory" also puts them in all memory that
// functions read.
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
