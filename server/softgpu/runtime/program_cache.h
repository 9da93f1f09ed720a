// The compiled programs of this process, by content: an image that is loaded twice is compiled once.
//
// Keeps programs that are in use, and the 64 most recently used ones, for programs that unload an image and
// load it again. Thread-safe; threads that load the same image at the same time compile it once.
#pragma once
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <variant>

#include "server/softgpu/jit/program.h"

namespace gpupool::softgpu {

class ProgramCache {
 public:
  using Outcome = std::variant<std::shared_ptr<const Program>, CompileError>;
  Outcome get(std::span<const std::string_view> texts, const CompileOptions& options);

 private:
  struct Key {
    uint64_t low, high, bytes, options;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    bool compiling = false;
    std::weak_ptr<const Program> program;
  };
  static constexpr size_t kKeptPrograms = 64;
  static Key key_of(std::span<const std::string_view> texts, const CompileOptions& options);
  void keep(std::shared_ptr<const Program> program);

  std::mutex mutex_;
  std::condition_variable compiled_;
  std::map<Key, Entry> entries_;
  std::list<std::shared_ptr<const Program>> kept_;  // most recent first
};

}  // namespace gpupool::softgpu
