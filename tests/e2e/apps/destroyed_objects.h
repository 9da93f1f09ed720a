// Handles and addresses of destroyed objects, for tests of calls that must reject them.
#pragma once
#include <cuda.h>

#include <type_traits>

namespace app {

// One destroyed object of each kind that the device supports.
struct DestroyedObjects {
  DestroyedObjects();  // creates and destroys the objects in the current context
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

  // Sets `out` if it has the type of one of the handles; else returns false.
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
