// The file by which a lease reaches programs, and what GPUPOOL may name instead. What was read is written and read again as the same.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "client/lease/file.h"

using namespace gpupool::client;

namespace {

// A file in memory, and the path by which it is opened again.
struct File {
  explicit File(const std::string& text) : descriptor(::memfd_create("lease", MFD_CLOEXEC)) {
    if (::write(descriptor, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  }
  ~File() { ::close(descriptor); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor); }
  const int descriptor;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& one : {text, "gpupool lease 1\n" + text}) {
    const File file(one);
    const auto servers = read_lease_file(file.path());
    if (!servers) {
      if (servers.error().message.empty()) std::abort();
      continue;
    }
    std::string again = "gpupool lease 1\n";
    for (const LeasedServer& server : *servers) again += server.endpoint.text() + " " + server.token + "\n";
    const File copy(again);
    const auto read = read_lease_file(copy.path());
    if (!read || read->size() != servers->size()) std::abort();
    for (size_t i = 0; i < read->size(); ++i) {
      if ((*read)[i].token != (*servers)[i].token || (*read)[i].endpoint.text() != (*servers)[i].endpoint.text()) std::abort();
    }
  }
  if (text.find('\0') == std::string::npos && !text.starts_with("lease:")) static_cast<void>(named_servers(text));
  return 0;
}
