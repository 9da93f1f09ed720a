// Fuzzes the parsers of sizes, rates and tenants of a configuration file, which an operator writes: trusted,
// but possibly malformed.
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/text/units.h"
#include "server/tenants/tenants_file.h"

using namespace gpupool;
using namespace gpupool::server;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto bytes = parse_size(text)) {
    const auto again = parse_size(size_text(*bytes));
    if (!again || *again != *bytes) __builtin_trap();
  }
  static_cast<void>(parse_rate(text));
  if (const auto milli = parse_gpus(text)) {
    const std::string again = gpus_text(*milli);
    const auto same = parse_gpus(again.substr(0, again.find(' ')));
    if (!same || *same != *milli || percent_text(*milli).empty() || bytes_text(*milli).empty())
      __builtin_trap();
  }
  try {
    static_cast<void>(read_tenants(toml::parse(text)));
  } catch (const toml::parse_error&) {
  }
  return 0;
}
