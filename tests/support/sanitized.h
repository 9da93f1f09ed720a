// Tells whether this is a build with AddressSanitizer or ThreadSanitizer, where tests run a share of their
// rounds and skip what the sanitizers' run-time cannot do.
#pragma once

namespace gpupool::testing {

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

}  // namespace gpupool::testing
