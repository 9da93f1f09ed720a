// Base class of the objects behind driver handles: an intrusive reference count.
//
// The handle table, queued operations and other objects share an object; the last reference deletes it. Any
// thread may add or drop a reference.
#pragma once
#include <atomic>
#include <cstdint>
#include <utility>

namespace gpupool::softgpu {

class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  void add_reference() const noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void drop_reference() const noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 protected:
  virtual ~Object() = default;

 private:
  mutable std::atomic<uint32_t> references_{1};
};

template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  Ref(const Ref& other) noexcept : object_(other.object_) {
    if (object_ != nullptr) object_->add_reference();
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <class U>
  Ref(const Ref<U>& other) noexcept : object_(other.get()) {
    if (object_ != nullptr) object_->add_reference();
  }
  template <class U>
  Ref(Ref<U>&& other) noexcept : object_(other.release()) {}
  ~Ref() { reset(); }
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  // Takes ownership of an existing reference: a new object starts with one.
  static Ref adopt(T* object) noexcept {
    Ref ref;
    ref.object_ = object;
    return ref;
  }
  static Ref share(T* object) noexcept {
    if (object != nullptr) object->add_reference();
    return adopt(object);
  }

  void reset() noexcept {
    if (T* object = std::exchange(object_, nullptr)) object->drop_reference();
  }
  T* release() noexcept { return std::exchange(object_, nullptr); }
  T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) noexcept { return a.object_ == b.object_; }

 private:
  T* object_ = nullptr;
};

template <class T, class... Arguments>
Ref<T> make_ref(Arguments&&... arguments) {
  return Ref<T>::adopt(new T(std::forward<Arguments>(arguments)...));
}

}  // namespace gpupool::softgpu
