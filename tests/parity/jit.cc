// JIT options and logs.
#include <cstring>
#include <vector>

#include "tests/parity/show.h"

namespace parity {
namespace {

const char kGood[] = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n";

struct Jit {
  char info[300], error[300];
  std::vector<CUjit_option> options;
  std::vector<void*> values;
  Jit(size_t room) {
    std::memset(info, 'x', sizeof info);
    std::memset(error, 'x', sizeof error);
    add(CU_JIT_INFO_LOG_BUFFER, info);
    add(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, reinterpret_cast<void*>(room));
    add(CU_JIT_ERROR_LOG_BUFFER, error);
    add(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, reinterpret_cast<void*>(room));
  }
  void add(CUjit_option option, void* value) {
    options.push_back(option);
    values.push_back(value);
  }
  unsigned count() const { return static_cast<unsigned>(options.size()); }
  void show(const char* what, CUresult result) const {
    std::printf("%s -> %s: info %zu bytes '%.40s', error %zu bytes, ends at %zu of them, begins with %.40s\n",
                what, name_of(result), reinterpret_cast<size_t>(values[1]),
                info[0] == 'x' ? "untouched" : info, reinterpret_cast<size_t>(values[3]),
                ::strnlen(error, sizeof error), error[0] == 'x' ? "untouched" : error);
  }
};

}  // namespace

void jit_options() {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  const char* const broken =
      ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k()\n{\nfrobnicate.b32 %r1;\nret;\n}\n";
  for (const size_t room : {size_t{0}, size_t{1}, size_t{20}, size_t{300}}) {
    Jit good(room), bad(room), of_library(room);
    good.show("good module",
              cuModuleLoadDataEx(&module, kGood, good.count(), good.options.data(), good.values.data()));
    bad.show("bad module",
             cuModuleLoadDataEx(&module, broken, bad.count(), bad.options.data(), bad.values.data()));
    of_library.show("bad library",
                    cuLibraryLoadData(&library, broken, of_library.options.data(), of_library.values.data(),
                                      of_library.count(), nullptr, nullptr, 0));
    for (const Jit* refused : {&bad, &of_library})
      EXPECT(room < sizeof refused->error || std::strstr(refused->error, "frobnicate"));
  }
  Jit without_buffer(300);
  without_buffer.values[0] = without_buffer.values[2] = nullptr;
  without_buffer.show("no buffer", cuModuleLoadDataEx(&module, broken, 4, without_buffer.options.data(),
                                                      without_buffer.values.data()));
  Jit numbers(300);
  float never = -1;
  void* before = nullptr;
  std::memcpy(&before, &never, sizeof never);
  numbers.add(CU_JIT_WALL_TIME, before);
  numbers.add(CU_JIT_MAX_REGISTERS, reinterpret_cast<void*>(32));
  numbers.add(CU_JIT_OPTIMIZATION_LEVEL, reinterpret_cast<void*>(2));
  numbers.add(CU_JIT_TARGET, reinterpret_cast<void*>(90));
  numbers.add(CU_JIT_TARGET_FROM_CUCONTEXT, nullptr);
  numbers.add(CU_JIT_FALLBACK_STRATEGY, reinterpret_cast<void*>(CU_PREFER_PTX));
  numbers.add(CU_JIT_GENERATE_DEBUG_INFO, reinterpret_cast<void*>(1));
  numbers.add(CU_JIT_GENERATE_LINE_INFO, reinterpret_cast<void*>(1));
  numbers.add(CU_JIT_LOG_VERBOSE, reinterpret_cast<void*>(1));
  numbers.add(CU_JIT_CACHE_MODE, reinterpret_cast<void*>(CU_JIT_CACHE_OPTION_CA));
  const auto took = [&] {
    float milliseconds = 0;
    std::memcpy(&milliseconds, &numbers.values[4], sizeof milliseconds);
    return milliseconds >= 0 && milliseconds < 60'000;
  };
  SHOW_VALUE(
      cuModuleLoadDataEx(&module, kGood, numbers.count(), numbers.options.data(), numbers.values.data()),
      "%d", took());
  std::printf("a verbose info log:\n%s", numbers.info);
  EXPECT(took());
  numbers.values[4] = before;
  SHOW_VALUE(cuLibraryLoadData(&library, kGood, numbers.options.data(), numbers.values.data(),
                               numbers.count(), nullptr, nullptr, 0),
             "%d", took());
  EXPECT(took());
  for (const int option : {17, 18, 19, 25, 28, 35, 99, -1}) {
    CUjit_option one[] = {static_cast<CUjit_option>(option)};
    void* value[] = {nullptr};
    std::printf("option %d: module %s\n", option, name_of(cuModuleLoadDataEx(&module, kGood, 1, one, value)));
    std::printf("option %d: library %s\n", option,
                name_of(cuLibraryLoadData(&library, kGood, one, value, 1, nullptr, nullptr, 0)));
  }
  SHOW(cuModuleLoadDataEx(&module, kGood, 2, nullptr, numbers.values.data()));
  SHOW(cuModuleLoadDataEx(&module, kGood, 2, numbers.options.data(), nullptr));
  SHOW(cuModuleLoadDataEx(&module, kGood, ~0u, numbers.options.data(), numbers.values.data()));
  SHOW(cuModuleLoadDataEx(&module, kGood, 0, nullptr, nullptr));
}

}  // namespace parity
