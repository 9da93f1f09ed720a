// Reads numbers and texts from a fuzzer's input, for targets whose input is a sequence of calls. Returns
// zeros and empty texts at the end of the input.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

namespace gpupool::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  T get() {
    T value{};
    const size_t bytes = std::min(sizeof value, left_);
    std::memcpy(&value, data_, bytes);
    skip(bytes);
    return value;
  }
  // Limits up to 256 use one byte, so that mutations find all values.
  uint32_t below(uint32_t limit) { return limit <= 256 ? get<uint8_t>() % limit : get<uint32_t>() % limit; }
  // Reads a length of one byte and then that many bytes.
  std::string text() { return bytes(get<uint8_t>()); }
  // Reads a length of two bytes and then that many bytes.
  std::string long_text() { return bytes(get<uint16_t>()); }
  std::string rest() { return bytes(left_); }

 private:
  std::string bytes(size_t wanted) {
    const size_t size = std::min(wanted, left_);
    std::string text(reinterpret_cast<const char*>(data_), size);
    skip(size);
    return text;
  }
  void skip(size_t bytes) { data_ += bytes, left_ -= bytes; }

  const uint8_t* data_;
  size_t left_;
};

}  // namespace gpupool::fuzz
