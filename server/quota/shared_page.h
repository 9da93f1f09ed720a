// A memory file of fixed size that two processes map: poold makes it and passes its descriptor to a worker.
// Seals keep both from resizing it. The contents must be atomics, since the other process may write at any
// time.
#pragma once
#include <cstddef>
#include <memory>
#include <type_traits>

#include "common/result.h"

namespace gpupool::quota {

class SharedMapping {
 public:
  static Result<SharedMapping> create(const char* name, size_t bytes);  // filled with zeroes
  // Takes ownership of the descriptor. ErrorCode::malformed: create() has not made this file with this size.
  static Result<SharedMapping> open(int descriptor, size_t bytes);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) = delete;
  ~SharedMapping();

  void* data() const { return data_; }
  int descriptor() const { return descriptor_; }

 private:
  SharedMapping(int descriptor, void* data, size_t bytes)
      : descriptor_(descriptor), data_(data), bytes_(bytes) {}
  int descriptor_;
  void* data_;
  size_t bytes_;
};

// T is all zero at first.
template <class T>
class SharedPage {
 public:
  static_assert(std::is_standard_layout_v<T> && std::is_trivially_destructible_v<T>);
  static Result<std::shared_ptr<SharedPage>> create(const char* name) {
    return wrap(SharedMapping::create(name, sizeof(T)));
  }
  static Result<std::shared_ptr<SharedPage>> open(int descriptor) {
    return wrap(SharedMapping::open(descriptor, sizeof(T)));
  }
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
