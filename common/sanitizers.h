// Tells which sanitizer this build has, and which addresses ThreadSanitizer leaves to programs. Used by code
// and tests whose sizes, addresses or system calls depend on it. cmake/compiler.cmake defines the macros.
#pragma once
#include <cstdint>

namespace gpupool {

#if defined(GPUPOOL_ASAN) || defined(GPUPOOL_TSAN)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

#if defined(GPUPOOL_TSAN)
constexpr bool kThreadSanitized = true;
#else
constexpr bool kThreadSanitized = false;
#endif

// End of the addresses that a program with ThreadSanitizer may choose for mappings (x86-64: kLoAppMemEnd of
// compiler-rt's tsan_platform.h). The sanitizer's own memory lies above.
constexpr uint64_t kThreadSanitizerEnd = uint64_t{1} << 39;

}  // namespace gpupool
