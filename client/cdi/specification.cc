#include "client/cdi/specification.h"

#include <algorithm>
#include <string_view>

namespace gpupool::cdi {
namespace {

using Json = Specification::Json;

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// `edits` of a container, with the members of CDI. Engines reject empty edits, and accept missing members.
Json json_of(const Edits& edits) {
  Json out = Json::object();
  for (const auto& [name, value] : edits.variables) {
    std::string pair = name;
    out["env"].push_back(pair.append("=").append(value));
  }
  for (const Mount& mount : edits.mounts) {
    Json one = {{"hostPath", mount.host_path}, {"containerPath", mount.container_path}};
    one["options"] = {"ro", "nosuid", "nodev", "bind"};
    out["mounts"].push_back(std::move(one));
  }
  return out;
}

// Returns the member of an object, or null.
const Json* member(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(name);
  return found == json.end() ? nullptr : &*found;
}

bool is_text(const Json* json) {
  return json != nullptr && json->is_string();
}

// Returns the value of a variable in a device's edits.
std::string value_of(const Json& device, const std::string& variable) {
  const Json* const edits = member(device, "containerEdits");
  const Json* const variables = edits ? member(*edits, "env") : nullptr;
  if (variables == nullptr || !variables->is_array()) return "";
  for (const Json& pair : *variables) {
    if (!pair.is_string()) continue;
    const auto& text = pair.get_ref<const std::string&>();
    if (text.starts_with(variable + "=")) return text.substr(variable.size() + 1);
  }
  return "";
}

// Returns why the document is not a specification of gpupool's devices; empty: it is.
std::string fault(const Json& json) {
  const Json* const kind = member(json, "kind");
  if (!is_text(kind)) return "it has no \"kind\"";
  if (*kind != kKind) return "its kind is '" + kind->get<std::string>() + "', not '" + kKind + "'";
  const Json* const devices = member(json, "devices");
  if (devices == nullptr || !devices->is_array()) return "it has no list of devices";
  for (const Json& device : *devices) {
    const Json* const name = member(device, "name");
    if (!is_text(name) || !check_name(name->get<std::string>())) return "a device has no valid name";
  }
  return "";
}

}  // namespace

Result<void> check_name(const std::string& name) {
  const auto invalid = [&](const char* rule) {
    return Error{ErrorCode::invalid, "'" + name + "' cannot be a device's name: " + rule};
  };
  if (name.empty()) return invalid("it is empty");
  const auto allowed = [](char c) {
    return is_alphanumeric(c) || std::string_view("_-.:").find(c) != std::string_view::npos;
  };
  if (!std::all_of(name.begin(), name.end(), allowed))
    return invalid("only A-Z, a-z, 0-9 and the characters _ - . : are allowed");
  if (!is_alphanumeric(name.front()) || !is_alphanumeric(name.back()))
    return invalid("it must begin and end with a letter or a digit");
  return {};
}

Specification::Specification()
    : json_{{"cdiVersion", kCdiVersion}, {"kind", kKind}, {"devices", Json::array()}} {}

Result<Specification> Specification::parse(const std::string& text, const std::string& path) {
  Json json = Json::parse(text, nullptr, false);
  const std::string why = json.is_discarded() ? "it is not JSON" : fault(json);
  if (!why.empty()) {
    return Error{ErrorCode::invalid, path + " is not a specification of pool-cdi: " + why +
                                         "; move it away, or choose another file with --output"};
  }
  Specification out;
  out.json_ = std::move(json);
  return out;
}

void Specification::put(const Device& device) {
  Json fresh = {{"name", device.name}, {"containerEdits", json_of(device.edits)}};
  for (Json& present : json_["devices"]) {
    if (present["name"] != device.name) continue;
    present = std::move(fresh);
    return;
  }
  json_["devices"].push_back(std::move(fresh));
}

bool Specification::remove(const std::string& name) {
  Json& devices = json_["devices"];
  for (size_t at = 0; at < devices.size(); ++at) {
    if (devices[at]["name"] != name) continue;
    devices.erase(at);
    return true;
  }
  return false;
}

void Specification::set_common(const Edits& edits) {
  json_["cdiVersion"] = kCdiVersion;
  json_["containerEdits"] = json_of(edits);
}

std::vector<Specification::Entry> Specification::devices() const {
  std::vector<Entry> out;
  for (const Json& device : json_["devices"])
    out.push_back({device["name"].get<std::string>(), value_of(device, "GPUPOOL")});
  return out;
}

Result<std::string> Specification::text() const {
  try {
    return json_.dump(2) + "\n";
  } catch (const Json::type_error&) {
    return Error{ErrorCode::invalid, "cannot write the specification: a path or a value is not UTF-8"};
  }
}

}  // namespace gpupool::cdi
