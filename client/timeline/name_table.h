// A bounded set of names that live for good, because events point to them. One thread at a time; throws
// std::bad_alloc.
#pragma once
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace gpupool::client::timeline {

class NameTable {
 public:
  static constexpr size_t kLongestName = 512;

  NameTable(size_t most_names, size_t most_bytes) : most_names_(most_names), most_bytes_(most_bytes) {}

  // Returns the name, which is cut to kLongestName; null: the table is full.
  const char* find_or_add(std::string_view name) {
    const std::string_view cut = name.substr(0, kLongestName);
    if (const auto known = names_.find(cut); known != names_.end()) return known->second;
    if (names_.size() >= most_names_ || bytes_ + cut.size() > most_bytes_) return nullptr;
    char* const copy = new char[cut.size() + 1];
    std::memcpy(copy, cut.data(), cut.size());
    copy[cut.size()] = '\0';
    bytes_ += cut.size();
    return names_.emplace(cut, copy).first->second;
  }

 private:
  const size_t most_names_, most_bytes_;
  size_t bytes_ = 0;
  std::map<std::string, const char*, std::less<>> names_;
};

}  // namespace gpupool::client::timeline
