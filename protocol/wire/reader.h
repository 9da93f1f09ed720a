// Reads values from the bytes of an untrusted peer. Every read is checked: after the first one that fails,
// ok() is false and all further reads return zeros, so that a decoder can read everything and check once. One
// thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace gpupool::wire {

constexpr uint32_t kMaxTextBytes =
    64 * 1024;  // names of kernels and variables: mangled C++ names can be long

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
    requires std::is_trivially_copyable_v<T>
  T get() {
    T value{};
    if (const auto bytes = get_bytes(sizeof(T)); bytes.size() == sizeof(T))
      std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  // Returns a view into the message, valid as long as the message is.
  std::span<const std::byte> get_bytes(size_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const auto bytes = rest_.first(size);
    rest_ = rest_.subspan(size);
    return bytes;
  }
  std::string_view get_text() {
    const auto size = get<uint32_t>();
    if (size > kMaxTextBytes) ok_ = false;
    const auto bytes = get_bytes(ok_ ? size : 0);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  size_t remaining() const { return ok_ ? rest_.size() : 0; }
  void fail() { ok_ = false; }
  bool ok() const { return ok_; }
  // True if all bytes were read and no read failed.
  bool finished() const { return ok_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace gpupool::wire
