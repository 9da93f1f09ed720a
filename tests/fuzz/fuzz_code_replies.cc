// Fuzzes a server's replies about kernels, variables and shared memory (client/session/replies.h). The first
// byte selects the kind; the rest is the reply, or for kernel names a sequence of replies with their lengths.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "client/session/replies.h"
#include "protocol/wire/commands.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

using namespace gpupool;
using fuzz::require;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void describe_kernel(const std::string& reply) {
  client::KernelDescription description;
  if (!client::read_kernel_description(bytes_of(reply), &description)) return;
  require(description.parameters.size() <= wire::kMaxParameters &&
          description.parameter_bytes <= wire::kMaxParameterBytes);
  for (const auto& parameter : description.parameters)
    require(parameter.offset + parameter.size <= description.parameter_bytes);
}

void name_kernels(fuzz::Input input) {
  std::vector<std::string> names;
  for (bool complete = false; !complete && !input.empty();) {
    const size_t before = names.size();
    const std::string reply = input.long_text();
    if (!client::read_kernel_names(bytes_of(reply), &names, &complete)) return;
    require(complete || names.size() > before);  // each further reply must make progress
    for (size_t i = before; i < names.size(); ++i) require(names[i].find('\0') == std::string::npos);
  }
}

void check_global(const std::string& reply) {
  wire::GlobalInfo info;
  if (client::read_global(bytes_of(reply), &info))
    require(info.address + info.size >= info.address && info.address + info.size <= uint64_t{1} << 57);
}

void check_name(const std::string& reply) {
  wire::SharedName name;
  if (!client::read_shared_name(bytes_of(reply), &name)) return;
  require(reply.size() == sizeof name && client::is_shared_name(name, name.kind) &&
          !client::is_shared_name(name, name.kind + 1));
}

void check_import(const std::string& reply) {
  wire::ImportedMemory memory;
  if (client::read_imported_memory(bytes_of(reply), &memory))
    require(std::memcmp(reply.data(), &memory, sizeof memory) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  switch (input.below(5)) {
    case 0: return describe_kernel(input.rest()), 0;
    case 1: return name_kernels(input), 0;
    case 2: return check_global(input.rest()), 0;
    case 3: return check_name(input.rest()), 0;
    default: return check_import(input.rest()), 0;
  }
}
