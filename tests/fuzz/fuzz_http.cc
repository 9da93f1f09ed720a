// Fuzzes the parser of HTTP requests.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/http/http_request.h"
#include "common/text/printable.h"

using namespace gpupool;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto request = read_request(text);
  if (!request && size >= kMostRequestHeadBytes) std::abort();
  if (request && request->refusal == 0) {
    if (request->path.empty() || request->path[0] != '/' ||
        gpupool::printable(request->path) != request->path)
      std::abort();
    if (is_local_host(request->host) && !is_allowed_host(request->host, {})) std::abort();
    if (bearer_token(request->authorization).size() > request->authorization.size()) std::abort();
    // Bytes behind a complete request must not change it.
    const auto longer = read_request(std::string(text) + "x");
    if (!longer || longer->path != request->path || longer->host != request->host) std::abort();
  }
  const std::string harmless = gpupool::printable(text);
  if (gpupool::printable(harmless) != harmless) std::abort();
  return 0;
}
