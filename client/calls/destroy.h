// What frees or destroys an object needs no current context: where the thread has none, the object's own takes its place.
#pragma once
#include "client/call.h"
#include "client/context.h"

namespace gpupool::client {

// For as long as this lives. Of the calling thread.
class BorrowedContext {
 public:
  explicit BorrowedContext(uint64_t context) {
    auto& stack = thread_state().contexts;
    if (context == 0 || (!stack.empty() && stack.back() != 0)) return;
    stack.push_back(context);
    borrowed_ = true;
  }
  ~BorrowedContext() {
    if (borrowed_) thread_state().contexts.pop_back();
  }
  BorrowedContext(const BorrowedContext&) = delete;
  BorrowedContext& operator=(const BorrowedContext&) = delete;

 private:
  bool borrowed_ = false;
};

// A row that ends an object.
template <class Row, class Handle>
CUresult destroy(Kind kind, Handle handle) noexcept {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    const Object* const object = handles().find(kind, cuda::handle_bits(handle));
    if (!object) return CUDA_ERROR_INVALID_HANDLE;
    const BorrowedContext borrowed(object->context);
    return Row::forward(handle);
  });
}

}  // namespace gpupool::client
