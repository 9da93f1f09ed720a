// How one parameter of a driver function travels, by its role (roles.h): what the client checks, writes and
// reads back, and what the worker reads, resolves, passes and writes back. device_address.h has the roles of
// device addresses; codec.h combines the parameters of a row.
//
// Client: `Ends` provides mint(kind), retire(handle), live(kind, handle), stream(handle) and device(ordinal).
// Worker: `Table` provides resolve(kind, handle) -> optional<void*>, bind(kind, handle, object),
// unbind(handle), stream(handle) and device(ordinal); `Memory` provides owns(address, size) and
// in_range(address, size) (DeviceMemory). Nothing here throws but std::bad_alloc.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

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
    if (!object) return K == Kind::context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
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
    return K == Kind::context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  }
};
template <Kind K, class A>
struct Parameter<role::handle_in_use<K>, A> : HandleParameter<K, A> {
  template <class Ends>
  static CUresult check(A arg, const Ends& ends) {
    return handle_bits(arg) == 0 ? CUDA_ERROR_INVALID_HANDLE
                                 : Parameter<role::handle<K>, A>::check(arg, ends);
  }
  template <class Slot, class Table>
  static CUresult resolve(Slot& slot, Table& table) {
    return slot.handle == 0 ? CUDA_ERROR_INVALID_HANDLE : HandleParameter<K, A>::resolve(slot, table);
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

template <class T>
struct Parameter<role::in, T*> : ParameterBase {
  static_assert(!kMayBeDeviceAddress<T>, "the role in does not check a CUdeviceptr");
  using V = std::remove_const_t<T>;
  using Slot = std::optional<V>;
  template <class Ends, class Args>
  static void write(Writer& writer, T* arg, const Args&, Ends&) {
    writer.put<uint8_t>(arg != nullptr);
    if (arg) writer.put(*arg);
  }
  static bool read(Reader& reader, Slot& slot) {
    if (reader.get<uint8_t>()) slot = reader.get<V>();
    return true;
  }
  static T* argument(Slot& slot) { return slot ? &*slot : nullptr; }
};

template <class T>
struct Parameter<role::out, T*> : ParameterBase {
  using Slot = std::optional<T>;
  template <class Ends, class Args>
  static void write(Writer& writer, T* arg, const Args&, Ends&) {
    writer.put<uint8_t>(arg != nullptr);
  }
  static bool read(Reader& reader, Slot& slot) {
    if (reader.get<uint8_t>()) slot.emplace();
    return true;
  }
  static T* argument(Slot& slot) { return slot ? &*slot : nullptr; }
  static void write_reply(Writer& writer, Slot& slot) {
    if (slot) writer.put(*slot);
  }
  template <class Args>
  static void read_reply(Reader& reader, T* arg, const Args&) {
    if (!arg) return;
    const T received = reader.get<T>();
    if (reader.ok()) *arg = received;
  }
};

template <class T>
struct Parameter<role::in_out, T*> : Parameter<role::out, T*> {
  static_assert(!kMayBeDeviceAddress<T>, "the role in_out does not check a CUdeviceptr");
  using Slot = std::optional<T>;
  template <class Ends, class Args>
  static void write(Writer& writer, T* arg, const Args&, Ends&) {
    writer.put<uint8_t>(arg != nullptr);
    if (arg) writer.put(*arg);
  }
  static bool read(Reader& reader, Slot& slot) {
    if (reader.get<uint8_t>()) slot = reader.get<T>();
    return true;
  }
};

// Arrays whose length is given by another parameter. The length also travels with the array, and the worker
// compares the two.
template <size_t N, size_t Less, class T>
struct InArrayParameter : ParameterBase {
  static_assert(!kMayBeDeviceAddress<T>, "the role in_array does not check a CUdeviceptr");
  using V = std::remove_const_t<T>;
  template <class Args>
  static uint64_t count_in(const Args& args) {
    const auto count = static_cast<uint64_t>(std::get<N>(args));
    return count < Less ? 0 : count - Less;
  }
  struct Slot {
    bool present = false;
    std::vector<V> items;
  };
  template <class Ends, class Args>
  static void write(Writer& writer, T* arg, const Args& args, Ends&) {
    uint64_t count = arg ? count_in(args) : 0;
    // No driver function takes that many; the worker answers CUDA_ERROR_INVALID_VALUE.
    if (count > kMaxArrayBytes / sizeof(V)) count = 0;
    writer.put<uint8_t>(arg != nullptr);
    writer.put<uint64_t>(count);
    writer.put_bytes(arg, count * sizeof(V));
  }
  static bool read(Reader& reader, Slot& slot) {
    slot.present = reader.get<uint8_t>() != 0;
    const auto count = reader.get<uint64_t>();
    if (count > kMaxArrayBytes / sizeof(V)) return false;
    const auto bytes = reader.get_bytes(count * sizeof(V));
    slot.items.resize(bytes.size() / sizeof(V));
    if (!bytes.empty()) std::memcpy(slot.items.data(), bytes.data(), bytes.size());
    return reader.ok();
  }
  template <class Args>
  static CUresult prepare(Slot& slot, const Args& args) {
    return !slot.present || slot.items.size() == count_in(args) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  static T* argument(Slot& slot) { return slot.present ? slot.items.data() : nullptr; }
};
template <size_t N, class T>
struct Parameter<role::in_array<N>, T*> : InArrayParameter<N, 0, T> {};
template <size_t N, size_t K, class T>
struct Parameter<role::in_array_less<N, K>, T*> : InArrayParameter<N, K, T> {};

template <size_t N, class T>
struct Parameter<role::out_array<N>, T*> : ParameterBase {
  struct Slot {
    bool present = false;
    std::vector<T> items;
  };
  template <class Ends, class Args>
  static void write(Writer& writer, T* arg, const Args&, Ends&) {
    writer.put<uint8_t>(arg != nullptr);
  }
  static bool read(Reader& reader, Slot& slot) {
    slot.present = reader.get<uint8_t>() != 0;
    return true;
  }
  template <class Args>
  static CUresult prepare(Slot& slot, const Args& args) {
    if (!slot.present) return CUDA_SUCCESS;
    const auto count = static_cast<uint64_t>(std::get<N>(args));
    if (count > kMaxArrayBytes / sizeof(T)) return CUDA_ERROR_INVALID_VALUE;
    slot.items.resize(count);
    return CUDA_SUCCESS;
  }
  static T* argument(Slot& slot) { return slot.present ? slot.items.data() : nullptr; }
  static void write_reply(Writer& writer, Slot& slot) {
    writer.put_bytes(slot.items.data(), slot.items.size() * sizeof(T));
  }
  template <class Args>
  static void read_reply(Reader& reader, T* arg, const Args& args) {
    if (!arg) return;
    const auto bytes = reader.get_bytes(static_cast<uint64_t>(std::get<N>(args)) * sizeof(T));
    if (reader.ok() && !bytes.empty()) std::memcpy(arg, bytes.data(), bytes.size());
  }
};
template <size_t N>
struct Parameter<role::out_text<N>, char*> : Parameter<role::out_array<N>, char*> {};

template <>
struct Parameter<role::c_string, const char*> : ParameterBase {
  struct Slot {
    bool present = false;
    std::string text;
  };
  template <class Ends, class Args>
  static void write(Writer& writer, const char* arg, const Args&, Ends&) {
    writer.put<uint8_t>(arg != nullptr);
    writer.put_text(arg ? arg : "");
  }
  static bool read(Reader& reader, Slot& slot) {
    slot.present = reader.get<uint8_t>() != 0;
    slot.text = reader.get_text();
    return reader.ok();
  }
  static const char* argument(Slot& slot) { return slot.present ? slot.text.c_str() : nullptr; }
};

template <>
struct Parameter<role::address, void*> : ParameterBase {
  using Slot = uint64_t;
  template <class Ends, class Args>
  static void write(Writer& writer, void* arg, const Args&, Ends&) {
    writer.put<uint64_t>(reinterpret_cast<uintptr_t>(arg));
  }
  static bool read(Reader& reader, Slot& slot) {
    slot = reader.get<uint64_t>();
    return true;
  }
  static void* argument(Slot& slot) { return reinterpret_cast<void*>(static_cast<uintptr_t>(slot)); }
};

// Only the attributes that the answer depends on are sent; none of them has a handle.
template <>
struct Parameter<role::launch_shape, const CUlaunchConfig*> : ParameterBase {
  static constexpr uint32_t kMaxAttributes = 64;
  struct Slot {
    bool present = false;
    CUlaunchConfig config{};
    std::vector<CUlaunchAttribute> attributes;
  };
  static bool matters(const CUlaunchAttribute& attribute) {
    const int id = static_cast<int>(attribute.id);
    return id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION ||
           id == CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
  }
  template <class Ends>
  static CUresult check(const CUlaunchConfig* arg, const Ends&) {
    return arg && arg->numAttrs != 0 && (!arg->attrs || arg->numAttrs > kMaxAttributes)
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
  }
  template <class Ends, class Args>
  static void write(Writer& writer, const CUlaunchConfig* arg, const Args&, Ends&) {
    writer.put<uint8_t>(arg != nullptr);
    if (!arg) return;
    for (const unsigned part : {arg->gridDimX, arg->gridDimY, arg->gridDimZ, arg->blockDimX, arg->blockDimY,
                                arg->blockDimZ, arg->sharedMemBytes}) {
      writer.put<uint32_t>(part);
    }
    const auto each = [&](auto&& visit) {
      for (unsigned i = 0; i < arg->numAttrs; ++i) {
        if (matters(arg->attrs[i])) visit(arg->attrs[i]);
      }
    };
    uint32_t count = 0;
    each([&](const CUlaunchAttribute&) { ++count; });
    writer.put(count);
    each([&](const CUlaunchAttribute& attribute) { writer.put(attribute); });
  }
  static bool read(Reader& reader, Slot& slot) {
    slot.present = reader.get<uint8_t>() != 0;
    if (!slot.present) return reader.ok();
    CUlaunchConfig& config = slot.config;
    for (unsigned* part : {&config.gridDimX, &config.gridDimY, &config.gridDimZ, &config.blockDimX,
                           &config.blockDimY, &config.blockDimZ, &config.sharedMemBytes}) {
      *part = reader.get<uint32_t>();
    }
    const auto count = reader.get<uint32_t>();
    if (count > kMaxAttributes) return false;
    for (uint32_t i = 0; i < count && reader.ok(); ++i) {
      slot.attributes.push_back(reader.get<CUlaunchAttribute>());
      if (!matters(slot.attributes.back())) return false;
    }
    return reader.ok();
  }
  static const CUlaunchConfig* argument(Slot& slot) {
    slot.config.attrs = slot.attributes.data();
    slot.config.numAttrs = static_cast<unsigned>(slot.attributes.size());
    return slot.present ? &slot.config : nullptr;
  }
};

}  // namespace gpupool::cuda
