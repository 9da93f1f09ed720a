#include "scheduler/core/inventory.h"

#include <algorithm>

#include "protocol/lease/token.h"

namespace gpupool::scheduler {
namespace {

constexpr size_t kBootBytes = 16;
constexpr size_t kUuidBytes = 40;
constexpr int kMaxGpusOfNode = 16;
constexpr int kMaxAddresses = 8;
constexpr size_t kLongestText = 256;
constexpr uint64_t kMaxMemory = uint64_t{1} << 50;

bool is_text(const std::string& text, size_t shortest) {
  return text.size() >= shortest && text.size() <= kLongestText &&
         std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

bool is_uuid(const std::string& text) {
  return text.size() == kUuidBytes && text.starts_with("GPU-") &&
         std::all_of(text.begin() + 4, text.end(), [](unsigned char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == '-';
         });
}

}  // namespace

std::optional<std::string> check_inventory(const pool::Inventory& inventory) {
  if (!lease::is_name(inventory.node())) return "node: must be 1 to 64 letters, digits, '-', '_' or '.'";
  if (inventory.boot().size() != kBootBytes) return "boot: must have 16 bytes";
  if (inventory.addresses().empty() || inventory.addresses_size() > kMaxAddresses)
    return "addresses: must be 1 to 8";
  for (const std::string& address : inventory.addresses()) {
    if (!is_text(address, 1)) return "addresses: must be 1 to 256 printable characters";
  }
  for (const std::string* text : {&inventory.rack(), &inventory.zone(), &inventory.version()}) {
    if (!is_text(*text, 0)) return "rack, zone and version must be printable and short";
  }
  if (inventory.host_memory_bytes() > kMaxMemory) return "host_memory_bytes: too large";
  if (inventory.gpus_size() > kMaxGpusOfNode) return "gpus: at most 16";
  std::set<std::string> uuids;
  for (const pool::Gpu& gpu : inventory.gpus()) {
    if (!is_uuid(gpu.uuid())) return "gpus: invalid UUID";
    if (!uuids.insert(gpu.uuid()).second) return "gpus: duplicate GPU " + gpu.uuid();
    if (!is_text(gpu.model(), 1)) return "gpus: invalid model";
    if (gpu.memory_bytes() == 0 || gpu.memory_bytes() > kMaxMemory) return "gpus: invalid memory size";
  }
  return std::nullopt;
}

std::optional<std::string> contradiction(const pool::Inventory& before, const pool::Inventory& now) {
  const auto inconsistent = [](const std::string& what) {
    return "inconsistent reports: " + what + " differs from the same process's earlier report";
  };
  if (before.gpus_size() != now.gpus_size()) return inconsistent("the number of GPUs");
  for (int i = 0; i < before.gpus_size(); ++i) {
    const pool::Gpu &a = before.gpus(i), &b = now.gpus(i);
    if (a.uuid() != b.uuid() || a.model() != b.model() || a.memory_bytes() != b.memory_bytes())
      return inconsistent("GPU " + std::to_string(i));
  }
  if (before.cpu_milli() != now.cpu_milli() || before.host_memory_bytes() != now.host_memory_bytes())
    return inconsistent("CPU or host memory");
  return std::nullopt;
}

}  // namespace gpupool::scheduler
