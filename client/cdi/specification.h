// A specification of the Container Device Interface (CDI): a JSON file that container engines read, with what
// a container gets for `--device gpupool.dev/gpu=NAME`. It has no device nodes: a container needs environment
// variables and read-only mounts.
//
// Used by pool-cdi and client/kubernetes/. No files; one thread. parse() does not trust the text.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"

namespace gpupool::cdi {

constexpr const char* kKind = "gpupool.dev/gpu";  // VENDOR/CLASS of all devices
// The oldest version that allows names with a leading digit. podman 4.3 reads no newer one.
constexpr const char* kCdiVersion = "0.5.0";

// A file or folder of the host in the container: read-only, without set-user-ID programs and device files.
struct Mount {
  std::string host_path;
  std::string container_path;
};

struct Edits {
  std::vector<std::pair<std::string, std::string>> variables;  // name and value
  std::vector<Mount> mounts;
};

struct Device {
  std::string name;
  Edits edits;
};

// Checks a name by the rules of CDI. ErrorCode::invalid: the message says which one it breaks.
Result<void> check_name(const std::string& name);

class Specification {
 public:
  using Json = nlohmann::ordered_json;  // keeps the order of members

  // Makes a specification without devices.
  Specification();
  // `path` is for error messages. ErrorCode::invalid: the text is no specification of this kind.
  static Result<Specification> parse(const std::string& text, const std::string& path);

  // Adds the device, or replaces the one of the same name.
  void put(const Device& device);
  // Returns false if there is no device of this name.
  bool remove(const std::string& name);
  // Sets what the containers of all devices get.
  void set_common(const Edits& edits);

  struct Entry {
    std::string name;
    std::string server;  // value of GPUPOOL; empty: not set
  };
  std::vector<Entry> devices() const;
  // ErrorCode::invalid: a path or value is not UTF-8, which JSON requires.
  Result<std::string> text() const;

 private:
  Json json_;
};

}  // namespace gpupool::cdi
