#include "client/kubernetes/slices.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace gpupool::kubernetes {
namespace {

constexpr size_t kMostInSlice = 128;  // limits of Kubernetes
constexpr size_t kLongestString = 64;
constexpr size_t kLongestDeviceName = 63;

// GPUs of one model.
struct Group {
  uint64_t gpus = 0;
  uint64_t memory = UINT64_MAX;  // of the smallest
  std::set<std::string> racks, zones;
};

// Makes a part of a device's name, which has small letters, digits and '-'.
std::string label_of(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (plain)
      out += c;
    else if (!out.empty() && out.back() != '-')
      out += '-';
  }
  while (out.ends_with("-")) out.pop_back();
  return out.empty() ? "gpu" : out;
}

// Returns the architecture of NVIDIA's data centre models; empty: another model.
std::string architecture_of(const std::string& model) {
  static const std::pair<const char*, const char*> known[] = {
      {"B100", "Blackwell"},   {"B200", "Blackwell"},   {"B300", "Blackwell"},  {"H100", "Hopper"},
      {"H200", "Hopper"},      {"H800", "Hopper"},      {"H20", "Hopper"},      {"L40S", "Ada Lovelace"},
      {"L40", "Ada Lovelace"}, {"L20", "Ada Lovelace"}, {"L4", "Ada Lovelace"}, {"A100", "Ampere"},
      {"A800", "Ampere"},      {"A40", "Ampere"},       {"A30", "Ampere"},      {"A16", "Ampere"},
      {"A10G", "Ampere"},      {"A10", "Ampere"},       {"A2", "Ampere"},       {"T4", "Turing"},
      {"V100", "Volta"},       {"P100", "Pascal"}};
  const auto is_word = [&](const std::string& word) {
    const auto ends = [](char c) { return c == ' ' || c == '-' || c == '\0'; };
    for (size_t at = model.find(word); at != std::string::npos; at = model.find(word, at + 1)) {
      if ((at == 0 || ends(model[at - 1])) && ends(model.c_str()[at + word.size()])) return true;
    }
    return false;
  };
  for (const auto& [name, architecture] : known) {
    if (is_word(name) || is_word("G" + std::string(name))) return architecture;
  }
  return "";
}

Json text_attribute(const std::string& text) {
  return {{"string", text.substr(0, kLongestString)}};
}

// A rack or zone is an attribute if all GPUs are there: the pool's scheduler may choose any of them.
Json attributes_of(const std::string& model, const Group& group) {
  Json out = {{"model", text_attribute(model)},
              {"memoryMiB", {{"int", static_cast<int64_t>(group.memory >> 20)}}}};
  if (const std::string name = architecture_of(model); !name.empty())
    out["architecture"] = text_attribute(name);
  for (const auto& [name, all] : {std::pair{"rack", &group.racks}, std::pair{"zone", &group.zones}}) {
    if (all->size() == 1 && !all->begin()->empty()) out[name] = text_attribute(*all->begin());
  }
  return out;
}

Json capacity(uint64_t all, const char* standard, const char* least, uint64_t most, bool shared) {
  Json out = {{"value", std::to_string(all)}};
  if (shared) {
    out["requestPolicy"] = {{"default", standard},
                            {"validRange", {{"min", least}, {"max", std::to_string(most)}}}};
  }
  return out;
}

Json device_of(const std::string& model, const Group& group, const std::string& name, bool shared) {
  const uint64_t gpus = shared ? group.gpus : 1;
  Json out = {{"name", name}, {"attributes", attributes_of(model, group)}};
  out["capacity"] = {{"compute", capacity(100 * gpus, "100", "1", 100, shared)},
                     {"memory", capacity(group.memory * gpus, "0", "0", group.memory, shared)}};
  if (shared) out["allowMultipleAllocations"] = true;
  return out;
}

// Returns a name that no other device has.
std::string unique_name(const std::string& base, const std::string& end, std::set<std::string>& taken) {
  for (int number = 1;; ++number) {
    const std::string tail = (number == 1 ? "" : "-" + std::to_string(number)) + end;
    std::string name = base.substr(0, kLongestDeviceName - tail.size()) + tail;
    if (taken.insert(name).second) return name;
  }
}

}  // namespace

Json devices_of(const pool::ListNodesReply& nodes, bool shared) {
  std::map<std::string, Group> groups;
  for (const pool::NodeState& node : nodes.nodes()) {
    // A node that is silent for a moment keeps its leases, and its devices.
    if (node.condition() != pool::NodeState::OPEN && node.condition() != pool::NodeState::SILENT) continue;
    for (const pool::PoolGpu& gpu : node.gpus()) {
      if (!gpu.withheld_because().empty()) continue;
      Group& group = groups[gpu.model()];
      ++group.gpus;
      group.memory = std::min<uint64_t>(group.memory, gpu.memory_bytes());
      group.racks.insert(node.rack());
      group.zones.insert(node.zone());
    }
  }
  Json devices = Json::array();
  std::set<std::string> taken;
  for (const auto& [model, group] : groups) {
    const std::string base = label_of(model);
    if (shared) {
      devices.push_back(device_of(model, group, unique_name(base, "", taken), true));
      continue;
    }
    for (uint64_t gpu = 0; gpu < group.gpus; ++gpu) {
      const std::string end = "-gpu" + std::to_string(gpu);
      devices.push_back(device_of(model, group, unique_name(base, end, taken), false));
    }
  }
  return devices;
}

std::string slice_name(const std::string& driver, const std::string& pool, size_t number) {
  return driver + "-" + label_of(pool) + "-" + std::to_string(number);
}

Json slices_of(const Json& devices, const std::string& driver, const std::string& pool, int64_t generation) {
  const size_t count = std::max<size_t>(1, (devices.size() + kMostInSlice - 1) / kMostInSlice);
  Json slices = Json::array();
  for (size_t number = 0; number < count; ++number) {
    const auto begin = devices.begin() + static_cast<std::ptrdiff_t>(number * kMostInSlice);
    const auto end =
        devices.begin() + static_cast<std::ptrdiff_t>(std::min(devices.size(), (number + 1) * kMostInSlice));
    slices.push_back({{"apiVersion", "resource.k8s.io/v1"},
                      {"kind", "ResourceSlice"},
                      {"metadata", {{"name", slice_name(driver, pool, number)}}},
                      {"spec",
                       {{"driver", driver},
                        {"pool", {{"name", pool}, {"generation", generation}, {"resourceSliceCount", count}}},
                        {"allNodes", true},
                        {"devices", Json(Json::array_t(begin, end))}}}});
  }
  return slices;
}

Json probe_slice(const std::string& driver, const std::string& pool) {
  Group group;
  group.gpus = 1;
  group.memory = uint64_t{1} << 30;
  const Json device = device_of("probe", group, "probe", true);
  return slices_of(Json::array({device}), driver, pool + "-probe", 1)[0];
}

bool are_shared(const Json& devices) {
  return std::all_of(devices.begin(), devices.end(), [](const Json& device) {
    const Json& shared = member(device, {"allowMultipleAllocations"});
    return shared.is_boolean() && shared.get<bool>();
  });
}

Json devices_in(const Json& slices) {
  Json devices = Json::array();
  for (const Json& slice : slices) {
    const Json& its = member(slice, {"spec", "devices"});
    if (its.is_array()) devices.insert(devices.end(), its.begin(), its.end());
  }
  return devices;
}

}  // namespace gpupool::kubernetes
