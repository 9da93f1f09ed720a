// Cache of replies that do not change, e.g. a kernel's occupancy or the peer attributes of two devices. The
// key is the encoded request with its id and context. Each session has one, used by rows of mode `once`.
// Thread-safe.
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "protocol/wire/writer.h"

namespace gpupool::client {

class ReplyCache {
 public:
  static std::string key(uint16_t id, uint64_t context, const wire::Buffer& request) {
    std::string key(reinterpret_cast<const char*>(request.data()), request.size());
    key.append(reinterpret_cast<const char*>(&id), sizeof id);
    return key.append(reinterpret_cast<const char*>(&context), sizeof context);
  }
  std::optional<wire::Buffer> find(const std::string& key) const {
    std::lock_guard lock(mutex_);
    const auto found = replies_.find(key);
    return found == replies_.end() ? std::nullopt : std::optional(found->second);
  }
  void keep(std::string key, const wire::Buffer& reply) {
    std::lock_guard lock(mutex_);
    if (replies_.size() >= kMost) replies_.clear();
    replies_.insert_or_assign(std::move(key), reply);
  }
  // Call when a setting that the replies depend on has changed.
  void forget() {
    std::lock_guard lock(mutex_);
    replies_.clear();
  }

 private:
  static constexpr size_t kMost = 4096;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, wire::Buffer> replies_;
};

}  // namespace gpupool::client
