#include "client/session/replies.h"

#include <algorithm>
#include <string_view>

#include "protocol/wire/commands.h"
#include "protocol/wire/reader.h"

namespace gpupool::client {
namespace {

// 57-bit virtual addresses: processors with five-level page tables, and GPUs.
constexpr uint64_t kAddressLimit = uint64_t{1} << 57;

bool names_something(const wire::SharedName& name) {
  return name.magic == wire::kSharedName && name.server != 0;
}

}  // namespace

bool read_kernel_description(std::span<const std::byte> reply, KernelDescription* description) {
  wire::Reader reader(reply);
  const auto info = reader.get<wire::FunctionInfo>();
  if (!reader.ok() || info.parameter_count > wire::kMaxParameters) return false;
  description->parameters.resize(info.parameter_count);
  for (auto& parameter : description->parameters) {
    parameter = reader.get<wire::ParameterInfo>();
    if (parameter.offset > wire::kMaxParameterBytes ||
        parameter.size > wire::kMaxParameterBytes - parameter.offset)
      return false;
    description->parameter_bytes = std::max(description->parameter_bytes, parameter.offset + parameter.size);
  }
  std::copy(std::begin(info.attributes), std::end(info.attributes), description->attributes);
  return reader.finished();
}

bool read_kernel_names(std::span<const std::byte> reply, std::vector<std::string>* names, bool* complete) {
  wire::Reader reader(reply);
  const uint64_t count = reader.get<wire::KernelNames>().count;
  const auto bytes = reader.get_bytes(reader.remaining());
  if (!reader.ok() || bytes.size() > wire::kMaxNamesBytes) return false;
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t before = names->size();
  for (size_t end; (end = text.find('\0')) != std::string_view::npos; text.remove_prefix(end + 1))
    names->emplace_back(text.substr(0, end));
  // Reject a truncated name, more names than announced, and an empty part, which would be requested again
  // without end.
  if (!text.empty() || names->size() > count || (names->size() == before && count != before)) return false;
  *complete = names->size() == count;
  return true;
}

bool read_global(std::span<const std::byte> reply, wire::GlobalInfo* info) {
  wire::Reader reader(reply);
  *info = reader.get<wire::GlobalInfo>();
  return reader.finished() && info->address <= kAddressLimit && info->size <= kAddressLimit - info->address;
}

bool read_shared_name(std::span<const std::byte> reply, wire::SharedName* name) {
  wire::Reader reader(reply);
  *name = reader.get<wire::SharedName>();
  return reader.finished() && names_something(*name);
}

bool read_imported_memory(std::span<const std::byte> reply, wire::ImportedMemory* memory) {
  wire::Reader reader(reply);
  *memory = reader.get<wire::ImportedMemory>();
  return reader.finished();
}

bool is_shared_name(const wire::SharedName& name, uint32_t kind) {
  return names_something(name) && name.kind == kind;
}

}  // namespace gpupool::client
