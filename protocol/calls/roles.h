// The roles of parameters of driver functions: the vocabulary of the rows in protocol/calls/*.def.
// parameter.h defines how each role travels.
#pragma once
#include <cstddef>

#include "protocol/calls/handles.h"

namespace gpupool::cuda {

// Whether the caller waits for the server.
enum class Mode {
  async,                  // queued; errors surface at the next call that waits
  sync,                   // one round trip
  async_without_context,  // as async, for functions that need no current context
  sync_without_context,
  // One round trip, then the answer is cached per arguments. Setting an attribute of a kernel clears the
  // cache.
  once,
  once_without_context,
};

namespace role {
struct value {};  // a number, enum, struct or device address, unchanged
template <Kind K>
struct handle {};  // an object of kind K; null stays null
template <Kind K>
struct handle_in_use {};  // as handle, but the client rejects null
template <Kind K>
struct new_handle {};  // K*: the client mints the handle, the worker binds it to the result
template <Kind K>
struct destroyed_handle {};  // the handle of an object that this call destroys
struct device {};            // CUdevice: numbered differently on the two sides (CUDA_VISIBLE_DEVICES)
struct stream {};            // CUstream: a handle or one of CUDA's special streams
struct in {};                // const T*: one T, may be null
struct out {};               // T*: one T that the call writes, may be null
struct in_out {};            // T*: one T, read and written
template <size_t N>
struct in_array {};  // const T*: as many T as parameter N (from 0) says
template <size_t N, size_t K>
struct in_array_less {};  // const T*: K fewer T than parameter N says
template <size_t N>
struct out_array {};  // T*: as many T as parameter N says, written by the call
template <size_t N>
struct out_text {};      // char*: buffer of parameter N bytes, NUL-terminated by the call
struct c_string {};      // const char*, may be null
struct address {};       // void*: a device address, which is never dereferenced
struct launch_shape {};  // const CUlaunchConfig*: its shape and cluster attributes, without its stream
}  // namespace role

// Limit for arrays in a row's arguments: far above what any driver function takes, far below what could harm
// the worker.
constexpr size_t kMaxArrayBytes = 1u << 20;

}  // namespace gpupool::cuda
