// Calls that free or destroy an object need no current context: without one, they use the object's own. Used
// by the destroy and free calls. Any thread.
#pragma once
#include "client/session/call.h"
#include "client/session/context.h"

namespace gpupool::client {

// Makes `context` current in the calling thread for the lifetime of this object, unless a context is current
// already.
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

// Forwards a row that destroys an object.
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
