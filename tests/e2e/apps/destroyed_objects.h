// Handles and addresses that were good once, for calls that must refuse them.
#pragma once
#include <cuda.h>

#include <type_traits>

namespace app {

// One object of each kind that has been destroyed, where the device has such objects at all.
struct DestroyedObjects {
  DestroyedObjects();  // in the current context
  CUdeviceptr address = 0;
  void* host = nullptr;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  CUmemoryPool pool = nullptr;
  CUmemGenericAllocationHandle allocation = 0;
  CUlinkState linker = nullptr;
  CUarray array = nullptr;
  CUmipmappedArray mipmap = nullptr;
#if CUDA_VERSION >= 12000
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
#endif

  template <class T>
  bool give(T& out) const {
    return (is(out, context) || is(out, module) || is(out, function) || is(out, stream) || is(out, event) ||
            is(out, graph) || is(out, node) || is(out, executable) || is(out, pool) || is(out, linker) ||
            is(out, array) || is(out, mipmap) || is(out, address)
#if CUDA_VERSION >= 12000
            || is(out, library) || is(out, kernel)
#endif
    );
  }

 private:
  template <class T, class Handle>
  static bool is(T& out, Handle handle) {
    if constexpr (std::is_same_v<T, Handle>) return out = handle, true;
    return false;
  }
};

}  // namespace app
