// Calls every symbol of the driver with meaningless arguments.
#include <cudaProfiler.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

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

// How far a child process has come, in memory that it shares with its parent.
struct Progress {
  size_t calls;  // begun
};
Progress& progress() {
  static auto* const shared = static_cast<Progress*>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  EXPECT(shared != MAP_FAILED);
  return *shared;
}

size_t free_memory() {
  size_t free = 0, total = 0;
  return cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS ? free : 0;
}

// True if the session works. The error of a queued call is reported once, in place of a later call's result
// (at most one that the worker has kept, and one that the client has), and then hides nothing any more.
bool is_unharmed() {
  constexpr int kCalls = 3;
  for (int call = 0; call < kCalls; ++call) {
    if (cuCtxSynchronize() == CUDA_SUCCESS) return true;
  }
  return false;
}

// Calls with one session after the other. A session is used for at most kCallsOfSession calls, and no longer
// after a call that has harmed it, or after kCallsOfCheck calls that have left allocated memory: both could
// hide what later calls do.
class Calls {
 public:
  // `make_ready` prepares a session; `call` makes the call with this number.
  Calls(size_t count, std::function<void()> make_ready, std::function<void(size_t)> call)
      : count_(count), make_ready_(std::move(make_ready)), call_(std::move(call)) {}

  // Makes all calls. Returns how many ended their process, after `crashed(number, status)` for each.
  unsigned make_all(const std::function<void(size_t, int)>& crashed) const {
    unsigned sum = 0;
    for (size_t next = 0; next < count_; next = progress().calls) {
      std::fflush(stdout);
      progress().calls = next;
      const pid_t child = fork();
      if (child == 0) make_some();
      int status = 0;
      EXPECT(waitpid(child, &status, 0) == child);
      EXPECT(progress().calls > next || status != 0);
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      progress().calls = std::max(progress().calls, next + 1);  // it may not have come to its first call
      crashed(progress().calls - 1, status);
      ++sum;
    }
    return sum;
  }

 private:
  static constexpr size_t kCallsOfSession = 64, kCallsOfCheck = 8;

  [[noreturn]] void make_some() const {
    Device device;
    make_ready_();
    const size_t free_before = free_memory();
    for (size_t made = 0; made < kCallsOfSession && progress().calls < count_; ++made) {
      alarm(240);  // some numbers are sizes of gigabytes, which take long on a busy machine
      call_(progress().calls++);
      // The session works or returns an error; the server must not crash.
      if (!is_unharmed()) break;
      if ((made + 1) % kCallsOfCheck == 0 && free_memory() != free_before) break;
    }
    std::_Exit(0);
  }

  const size_t count_;
  const std::function<void()> make_ready_;
  const std::function<void(size_t)> call_;
};

constexpr size_t kScratch = 1 << 20;

// Returns writable memory of zeros.
std::byte* make_scratch() {
  void* const scratch = mmap(nullptr, kScratch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(scratch != MAP_FAILED);
  return static_cast<std::byte*>(scratch);
}

}  // namespace

// Calls each symbol. Arguments: "nothing" (all zero), "scratch" (a writable block of zeros for every
// argument).
SCENARIO(any_call) {
  const std::string kind = arguments.at(0);
  std::vector<const char*> symbols;
  for (const char* const symbol : kSymbols) {
    if (!takes_numbers_for_host_memory(symbol)) symbols.push_back(symbol);
  }
  std::byte* const scratch = make_scratch();
  const Calls calls(
      symbols.size(), [] {},
      [&](size_t number) {
        void* const function = dlsym(RTLD_DEFAULT, symbols[number]);
        EXPECT(function != nullptr);
        std::memset(scratch, 0, kScratch);
        Words words = {};
        for (size_t w = 0; w < std::size(words); ++w) {
          if (kind == "scratch") words[w] = reinterpret_cast<uint64_t>(scratch) + w * 65536;
        }
        (void)call(function, words);
      });
  const unsigned crashed =
      calls.make_all([&](size_t number, int status) { tell_crash(symbols[number], status); });
  std::printf("%s: %zu symbols, %u crashed\n", kind.c_str(), symbols.size(), crashed);
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
  std::memcpy(scratch, &destroyed, sizeof destroyed);
  for (size_t filled = sizeof destroyed; filled < size; filled *= 2)
    std::memcpy(scratch + filled, scratch, std::min(filled, size - filled));
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

constexpr uint64_t kNumbers[] = {0, 1, 3, 0x7fffffff, 0xffffffff, 0x00007fffdeadbee0, 1ull << 62, ~0ull};

}  // namespace

// Calls each row with each of the numbers. Arguments: "stale" passes handles of destroyed objects;
// "stale_in_memory" also puts them in all memory that functions read.
SCENARIO(any_row) {
  const bool with_stale = !arguments.empty();
  const bool in_memory = with_stale && arguments[0] == "stale_in_memory";
  std::vector<const Row*> rows;
  for (const Row& row : kRows) {
    if (!takes_numbers_for_host_memory(row.name) && !(in_memory && writes_where_memory_says(row.name)))
      rows.push_back(&row);
  }
  std::byte* const scratch = make_scratch();
  const Calls calls(
      rows.size() * std::size(kNumbers),
      [&] {
        if (with_stale) stale = new DestroyedObjects;
      },
      [&](size_t number) {
        std::memset(scratch, 0, kScratch);
        if (in_memory) fill_with(*stale, scratch, kScratch);
        (void)rows[number / std::size(kNumbers)]->call(kNumbers[number % std::size(kNumbers)], scratch);
      });
  const unsigned crashed = calls.make_all(
      [&](size_t number, int status) { tell_crash(rows[number / std::size(kNumbers)]->name, status); });
  std::printf("%zu rows, %u crashed\n", std::size(kRows), crashed);
}
