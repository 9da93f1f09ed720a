// Opens the file for the reports of AddressSanitizer or ThreadSanitizer, whose run-time opens it with the
// first report: too late in a confined worker. Only for builds with sanitizers. Call it before the
// confinement.
#pragma once

#if defined(GPUPOOL_ASAN) || defined(GPUPOOL_TSAN)
#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <stdlib.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#endif

namespace gpupool::worker {

inline void open_sanitizer_reports() {
#if defined(GPUPOOL_ASAN) || defined(GPUPOOL_TSAN)
  for (const char* const name : {"ASAN_OPTIONS", "TSAN_OPTIONS"}) {
    const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
    const std::string options = value ? value : "";
    constexpr std::string_view kKey = "log_path=";
    const size_t at = options.rfind(kKey);
    if (at == std::string::npos) continue;
    const size_t begin = at + kKey.size();
    // Workers in process namespaces of their own may have the same pid.
    std::string path = options.substr(begin, options.find(':', begin) - begin) + ".worker-XXXXXX";
    const int file = ::mkostemp(path.data(), O_APPEND | O_CLOEXEC);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the sanitizers' interface
    if (file >= 0) __sanitizer_set_report_fd(reinterpret_cast<void*>(static_cast<intptr_t>(file)));
    return;
  }
#endif
}

}  // namespace gpupool::worker
