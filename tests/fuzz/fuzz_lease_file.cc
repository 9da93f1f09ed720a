// Fuzzes lease files, and addresses that GPUPOOL may name instead. A parsed file must be equal after it is
// written and read again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/lease/file.h"

using namespace gpupool::client;

namespace {

bool same(const std::vector<LeasedServer>& a, const std::vector<LeasedServer>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const LeasedServer& one, const LeasedServer& other) {
                      return one.token == other.token && one.endpoint.text() == other.endpoint.text() &&
                             same(one.next, other.next);
                    });
}

// The client library must read from the file exactly what pool-lease has written.
void write_and_read(const std::vector<LeasedServer>& servers) {
  static const std::string& path = *[] {
    const auto made = make_lease_folder();
    if (!made) std::abort();
    return new std::string(*made);
  }();
  static const int removed = std::atexit([] { remove_lease_file(path); });
  if (removed != 0) std::abort();
  if (const auto written = write_lease_file(path, servers); !written) {
    if (written.error().message.empty()) std::abort();
    return;
  }
  const auto read = named_servers("lease:" + path);
  if (!read || !same(*read, servers)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& one : {text, "gpupool lease 1\n" + text}) {
    const auto servers = parse_lease("FILE", one);
    if (!servers) {
      if (servers.error().message.empty()) std::abort();
      continue;
    }
    std::string again = "gpupool lease 1\n";
    for (const LeasedServer& server : *servers) {
      again += server.endpoint.text() + " " + server.token + "\n";
      for (const LeasedServer& next : server.next)
        again += "> " + next.endpoint.text() + " " + next.token + "\n";
    }
    const auto read = parse_lease("FILE", again);
    if (!read || !same(*read, *servers)) std::abort();
    if (size % 8 == 0) write_and_read(*servers);
  }
  if (text.find('\0') == std::string::npos && !text.starts_with("lease:"))
    static_cast<void>(named_servers(text));
  return 0;
}
