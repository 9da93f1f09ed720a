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
struct value {};   // an enum, struct or number, unchanged; no unsigned long long, because that is CUdeviceptr
struct number {};  // unsigned long long that is no device address: flags, a texture object's number
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

// Pointers to memory of the program. The client and the worker reject null with CUDA_ERROR_INVALID_VALUE,
// because NVIDIA's driver crashes in some calls with null; arrays may be null if they have no items.
struct in {};           // const T*: one T
struct in_or_null {};   // const T*: one T, or null
struct out {};          // T*: one T that the call writes
struct out_or_null {};  // T*: as out, or null
struct in_out {};       // T*: one T, read and written
template <size_t N>
struct in_array {};  // const T*: as many T as parameter N (from 0) says
template <size_t N, size_t K>
struct in_array_less {};  // const T*: K fewer T than parameter N says
template <size_t N>
struct out_array {};  // T*: as many T as parameter N says, written by the call
template <size_t N>
struct out_text {};  // char*: buffer of parameter N bytes, NUL-terminated by the call
struct c_string {};  // const char*, may be null
struct address {};   // void*: a device address, which the call does not access
struct launch_shape {
};  // const CUlaunchConfig*: its shape and cluster attributes, without its stream; not null

// CUdeviceptr. Each role says which bytes the call accesses. The worker rejects the call with
// CUDA_ERROR_INVALID_VALUE unless they are the session's own: its device memory or a variable of its modules.
template <size_t Bytes>
struct device_address {};  // a fixed number of bytes
template <size_t N, size_t Item = 1>
struct device_range {};  // as many items of Item bytes as parameter N says
template <size_t N, size_t Item = 1>
struct device_range_or_null {};  // as device_range; 0 stays 0
template <size_t Pitch, size_t Width, size_t Rows, size_t Item>
struct device_rows {};  // rows of items of Item bytes; pitch in bytes, width and number of rows in parameters
// CUdeviceptr within the session's range of addresses, mapped or not; otherwise as above.
struct session_address {};
template <size_t N>
struct session_range {};  // as many bytes as parameter N says
// CUdeviceptr whose bytes no other parameter gives. The row needs a wrapper that checks it
// (server/worker/handlers/guards.h); it does not compile without one.
struct guarded_device_address {};
}  // namespace role

template <class Role>
constexpr bool kMakes = false;
template <Kind K>
constexpr bool kMakes<role::new_handle<K>> = true;
template <class Role>
constexpr bool kDestroys = false;
template <Kind K>
constexpr bool kDestroys<role::destroyed_handle<K>> = true;
// True if any role of a row makes (destroys) an object.
template <class... Roles>
constexpr bool kRowMakes = (kMakes<Roles> || ...);
template <class... Roles>
constexpr bool kRowDestroys = (kDestroys<Roles> || ...);

// Limit for arrays in a row's arguments: far above what any driver function takes, far below what could harm
// the worker.
constexpr size_t kMaxArrayBytes = 1u << 20;

}  // namespace gpupool::cuda
