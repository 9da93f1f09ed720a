// How one parameter of a driver function travels, by its role (roles.h): what the client checks, writes and
// reads back, and what the worker reads, resolves, passes and writes back: values and handles.
// pointer_parameter.h has pointers to the program's memory, device_address.h device addresses; codec.h
// combines the parameters of a row.
//
// Client: `Ends` provides mint(kind), retire(handle), live(kind, handle), stream(handle) and device(ordinal).
// Worker: `Table` provides resolve(kind, handle) -> optional<void*>, bind(kind, handle, object),
// unbind(handle), stream(handle) and device(ordinal); `Memory` provides owns(address, size) and
// in_range(address, size) (DeviceMemory). Nothing here throws but std::bad_alloc.
#pragma once
#include <optional>
#include <type_traits>

#include "protocol/calls/roles.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/wire/reader.h"
#include "protocol/wire/writer.h"

namespace gpupool::cuda {

using wire::Reader;
using wire::Writer;

// A handle type is a pointer to an opaque struct, or an integer (CUmemGenericAllocationHandle).
template <class H>
uint64_t handle_bits(H handle) {
  if constexpr (std::is_pointer_v<H>)
    return reinterpret_cast<uintptr_t>(handle);
  else
    return static_cast<uint64_t>(handle);
}
template <class H>
H handle_from_bits(uint64_t bits) {
  if constexpr (std::is_pointer_v<H>)
    return reinterpret_cast<H>(static_cast<uintptr_t>(bits));
  else
    return static_cast<H>(bits);
}

// One parameter. The primary template is undefined, so a role that does not fit its type does not compile.
// Client side: check (CUDA_SUCCESS, or the code to return at once), write, read_reply.
// Worker side: Slot, read (false: malformed), resolve, prepare and check_memory (CUresult), argument, finish
// (after a successful call), write_reply.
template <class Role, class A>
struct Parameter;

struct ParameterBase {
  template <class A, class Ends>
  static CUresult check(A, const Ends&) {
    return CUDA_SUCCESS;
  }
  template <class Slot, class Args>
  static CUresult prepare(Slot&, const Args&) {
    return CUDA_SUCCESS;
  }
  template <class Slot, class Args, class Memory>
  static CUresult check_memory(const Slot&, const Args&, const Memory&) {
    return CUDA_SUCCESS;
  }
  template <class Slot, class Table>
  static CUresult resolve(Slot&, Table&) {
    return CUDA_SUCCESS;
  }
  template <class Slot, class Table>
  static void finish(Slot&, Table&) {}
  template <class Slot>
  static void write_reply(Writer&, Slot&) {}
  template <class A, class Args>
  static void read_reply(Reader&, A, const Args&) {}
};

// CUdeviceptr is an alias of unsigned long long, so both are treated as device addresses.
template <class A>
constexpr bool kMayBeDeviceAddress = std::is_same_v<std::remove_const_t<A>, CUdeviceptr>;

template <class A>
struct ValueParameter : ParameterBase {
  static_assert(std::is_trivially_copyable_v<A> && !std::is_pointer_v<A>);
  using Slot = A;
  template <class Ends, class Args>
  static void write(Writer& writer, A arg, const Args&, Ends&) {
    writer.put(arg);
  }
  static bool read(Reader& reader, Slot& slot) {
    slot = reader.get<A>();
    return true;
  }
  static A argument(Slot& slot) { return slot; }
};

template <class A>
struct Parameter<role::value, A> : ValueParameter<A> {
  static_assert(
      !kMayBeDeviceAddress<A>,
      "the role value does not check a CUdeviceptr: use device_address, device_range, device_rows or "
      "another role for addresses, or number if the unsigned long long is no address");
};
template <>
struct Parameter<role::number, unsigned long long> : ValueParameter<unsigned long long> {};

template <Kind K, class A>
struct HandleParameter : ParameterBase {
  static constexpr CUresult kInvalid =
      K == Kind::context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  struct Slot {
    uint64_t handle = 0;
    void* object = nullptr;
  };
  template <class Ends, class Args>
  static void write(Writer& writer, A arg, const Args&, Ends&) {
    writer.put(handle_bits(arg));
  }
  static bool read(Reader& reader, Slot& slot) {
    slot.handle = reader.get<uint64_t>();
    return true;
  }
  template <class Table>
  static CUresult resolve(Slot& slot, Table& table) {
    if (slot.handle == 0) return CUDA_SUCCESS;
    const auto object = table.resolve(K, slot.handle);
    if (!object) return kInvalid;
    slot.object = *object;
    return CUDA_SUCCESS;
  }
  static A argument(Slot& slot) { return handle_from_bits<A>(reinterpret_cast<uintptr_t>(slot.object)); }
};

template <Kind K, class A>
struct Parameter<role::handle<K>, A> : HandleParameter<K, A> {
  template <class Ends>
  static CUresult check(A arg, const Ends& ends) {
    const uint64_t bits = handle_bits(arg);
    if (bits == 0 || ends.live(K, bits)) return CUDA_SUCCESS;
    if (K == Kind::function && ends.live(Kind::kernel, bits)) return CUDA_SUCCESS;
    return HandleParameter<K, A>::kInvalid;
  }
};
template <Kind K, class A>
struct Parameter<role::handle_in_use<K>, A> : HandleParameter<K, A> {
  template <class Ends>
  static CUresult check(A arg, const Ends& ends) {
    return handle_bits(arg) == 0 ? HandleParameter<K, A>::kInvalid
                                 : Parameter<role::handle<K>, A>::check(arg, ends);
  }
  template <class Slot, class Table>
  static CUresult resolve(Slot& slot, Table& table) {
    return slot.handle == 0 ? HandleParameter<K, A>::kInvalid : HandleParameter<K, A>::resolve(slot, table);
  }
};
template <Kind K, class A>
struct Parameter<role::destroyed_handle<K>, A> : HandleParameter<K, A> {
  using Slot = typename HandleParameter<K, A>::Slot;
  template <class Ends>
  static CUresult check(A arg, const Ends& ends) {
    return ends.live(K, handle_bits(arg)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  template <class Ends, class Args>
  static void write(Writer& writer, A arg, const Args&, Ends& ends) {
    writer.put(handle_bits(arg));
    ends.retire(handle_bits(arg));
  }
  template <class Table>
  static CUresult resolve(Slot& slot, Table& table) {
    return slot.handle == 0 ? CUDA_ERROR_INVALID_HANDLE : HandleParameter<K, A>::resolve(slot, table);
  }
  template <class Table>
  static void finish(Slot& slot, Table& table) {
    table.unbind(slot.handle);
  }
};

template <Kind K, class A>
struct Parameter<role::new_handle<K>, A*> : ParameterBase {
  struct Slot {
    uint64_t handle = 0;
    A object{};
  };
  template <class Ends>
  static CUresult check(A* arg, const Ends&) {
    return arg ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  template <class Ends, class Args>
  static void write(Writer& writer, A* arg, const Args&, Ends& ends) {
    const uint64_t handle = ends.mint(K);
    *arg = handle_from_bits<A>(handle);
    writer.put(handle);
  }
  static bool read(Reader& reader, Slot& slot) {
    slot.handle = reader.get<uint64_t>();
    return kind_of(slot.handle) == K;
  }
  static A* argument(Slot& slot) { return &slot.object; }
  template <class Table>
  static void finish(Slot& slot, Table& table) {
    table.bind(K, slot.handle, reinterpret_cast<void*>(static_cast<uintptr_t>(handle_bits(slot.object))));
  }
};

template <>
struct Parameter<role::stream, CUstream> : ParameterBase {
  struct Slot {
    uint64_t handle = 0;
    CUstream stream = nullptr;
  };
  template <class Ends>
  static CUresult check(CUstream arg, const Ends& ends) {
    const uint64_t bits = handle_bits(arg);
    return is_special_stream(bits) || ends.live(Kind::stream, bits) ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_INVALID_HANDLE;
  }
  template <class Ends, class Args>
  static void write(Writer& writer, CUstream arg, const Args&, Ends& ends) {
    writer.put(ends.stream(handle_bits(arg)));
  }
  static bool read(Reader& reader, Slot& slot) {
    slot.handle = reader.get<uint64_t>();
    return true;
  }
  template <class Table>
  static CUresult resolve(Slot& slot, Table& table) {
    const auto object = table.stream(slot.handle);
    if (!object) return CUDA_ERROR_INVALID_HANDLE;
    slot.stream = *object;
    return CUDA_SUCCESS;
  }
  static CUstream argument(Slot& slot) { return slot.stream; }
};

template <>
struct Parameter<role::device, CUdevice> : Parameter<role::value, CUdevice> {
  template <class Ends, class Args>
  static void write(Writer& writer, CUdevice arg, const Args&, Ends& ends) {
    writer.put<CUdevice>(ends.device(arg));
  }
  template <class Table>
  static CUresult resolve(CUdevice& slot, Table& table) {
    const auto device = table.device(slot);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    slot = *device;
    return CUDA_SUCCESS;
  }
};

}  // namespace gpupool::cuda
