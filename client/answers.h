// Answers of the server that do not change, so that the same question is asked once: occupancy of a kernel, what two devices
// can do together. Keyed by the request as it would travel. Any thread.
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "protocol/wire/writer.h"

namespace gpupool::client {

class Answers {
 public:
  static std::string key(uint16_t id, uint64_t context, const wire::Buffer& request) {
    std::string key(reinterpret_cast<const char*>(request.data()), request.size());
    key.append(reinterpret_cast<const char*>(&id), sizeof id);
    return key.append(reinterpret_cast<const char*>(&context), sizeof context);
  }
  std::optional<wire::Buffer> find(const std::string& key) const {
    std::lock_guard lock(mutex_);
    const auto found = answers_.find(key);
    return found == answers_.end() ? std::nullopt : std::optional(found->second);
  }
  void keep(std::string key, const wire::Buffer& answer) {
    std::lock_guard lock(mutex_);
    if (answers_.size() >= kMost) answers_.clear();
    answers_.insert_or_assign(std::move(key), answer);
  }
  // What the answers depend on has changed.
  void forget() {
    std::lock_guard lock(mutex_);
    answers_.clear();
  }

 private:
  static constexpr size_t kMost = 4096;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, wire::Buffer> answers_;
};

}  // namespace gpupool::client
