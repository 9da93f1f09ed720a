// Appends values to a byte buffer in wire order. One thread at a time. Never fails: the buffer's owner checks
// limits before sending.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

namespace gpupool::wire {

using Buffer = std::vector<std::byte>;

class Writer {
 public:
  explicit Writer(Buffer& buffer) : buffer_(buffer) {}
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    put_bytes(&value, sizeof value);
  }
  void put_bytes(const void* bytes, size_t size) {
    const auto* first = static_cast<const std::byte*>(bytes);
    if (size != 0) buffer_.insert(buffer_.end(), first, first + size);
  }
  // u32 length + bytes.
  void put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    put_bytes(text.data(), text.size());
  }

 private:
  Buffer& buffer_;
};

}  // namespace gpupool::wire
