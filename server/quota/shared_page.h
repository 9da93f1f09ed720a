// A memory file of fixed size that two processes map: poold makes it and hands the descriptor to a worker. Neither can resize
// it under the other. What is in it must be atomics, since whoever maps it may write at any time.
#pragma once
#include <cstddef>
#include <memory>
#include <type_traits>

#include "protocol/wire/result.h"

namespace gpupool::quota {

class SharedMapping {
 public:
  static Result<SharedMapping> create(const char* name, size_t bytes);  // zeroes
  // Takes the descriptor over. ErrorCode::malformed: not a file that create() has made with this size.
  static Result<SharedMapping> open(int descriptor, size_t bytes);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) = delete;
  ~SharedMapping();

  void* data() const { return data_; }
  int descriptor() const { return descriptor_; }

 private:
  SharedMapping(int descriptor, void* data, size_t bytes) : descriptor_(descriptor), data_(data), bytes_(bytes) {}
  int descriptor_;
  void* data_;
  size_t bytes_;
};

// T is all zero at first.
template <class T>
class SharedPage {
 public:
  static_assert(std::is_standard_layout_v<T> && std::is_trivially_destructible_v<T>);
  static Result<std::shared_ptr<SharedPage>> create(const char* name) { return wrap(SharedMapping::create(name, sizeof(T))); }
  static Result<std::shared_ptr<SharedPage>> open(int descriptor) { return wrap(SharedMapping::open(descriptor, sizeof(T))); }
  explicit SharedPage(SharedMapping mapping) : mapping_(std::move(mapping)) {}

  T* operator->() const { return static_cast<T*>(mapping_.data()); }
  T& operator*() const { return *static_cast<T*>(mapping_.data()); }
  int descriptor() const { return mapping_.descriptor(); }

 private:
  static Result<std::shared_ptr<SharedPage>> wrap(Result<SharedMapping> mapping) {
    if (!mapping) return mapping.error();
    return std::make_shared<SharedPage>(std::move(*mapping));
  }
  SharedMapping mapping_;
};

}  // namespace gpupool::quota
