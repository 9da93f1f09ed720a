// Fuzzes lease files, and addresses that GPUPOOL may name instead. A parsed file must be equal after it is
// written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "client/lease/file.h"

using namespace gpupool::client;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& one : {text, "gpupool lease 1\n" + text}) {
    const auto servers = parse_lease("FILE", one);
    if (!servers) {
      if (servers.error().message.empty()) std::abort();
      continue;
    }
    std::string again = "gpupool lease 1\n";
    for (const LeasedServer& server : *servers) again += server.endpoint.text() + " " + server.token + "\n";
    const auto read = parse_lease("FILE", again);
    if (!read || read->size() != servers->size()) std::abort();
    for (size_t i = 0; i < read->size(); ++i) {
      if ((*read)[i].token != (*servers)[i].token ||
          (*read)[i].endpoint.text() != (*servers)[i].endpoint.text())
        std::abort();
    }
  }
  if (text.find('\0') == std::string::npos && !text.starts_with("lease:"))
    static_cast<void>(named_servers(text));
  return 0;
}
