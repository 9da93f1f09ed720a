// How pointers of driver functions to the program's memory travel, by their roles (roles.h); parameter.h
// describes the members. No state; any thread.
#pragma once
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "protocol/calls/parameter.h"

namespace gpupool::cuda {

// A pointer that must not be null, in the program's call and in the request.
template <class Base>
struct RequiredPointer : Base {
  template <class A, class Ends>
  static CUresult check(A arg, const Ends&) {
    return arg ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  template <class Slot, class Table>
  static CUresult resolve(Slot& slot, Table&) {
    return slot ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
};

template <class T>
struct Parameter<role::in_or_null, T*> : ParameterBase {
  static_assert(!kMayBeDeviceAddress<T>, "the roles in, in_or_null and in_out do not check a CUdeviceptr");
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
struct Parameter<role::in, T*> : RequiredPointer<Parameter<role::in_or_null, T*>> {};

template <class T>
struct Parameter<role::out_or_null, T*> : ParameterBase {
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
struct Parameter<role::out, T*> : RequiredPointer<Parameter<role::out_or_null, T*>> {};

template <class T>
struct Parameter<role::in_out, T*> : Parameter<role::in, T*> {
  using Out = Parameter<role::out, T*>;
  static void write_reply(Writer& writer, typename Out::Slot& slot) { Out::write_reply(writer, slot); }
  template <class Args>
  static void read_reply(Reader& reader, T* arg, const Args& args) {
    Out::read_reply(reader, arg, args);
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
    if (count > kMaxArrayBytes / sizeof(V) || (count != 0 && !slot.present)) return false;
    const auto bytes = reader.get_bytes(count * sizeof(V));
    slot.items.reserve(1);  // the address of an empty array is not null, either
    slot.items.resize(bytes.size() / sizeof(V));
    if (!bytes.empty()) std::memcpy(slot.items.data(), bytes.data(), bytes.size());
    return reader.ok();
  }
  template <class Args>
  static CUresult prepare(Slot& slot, const Args& args) {
    return slot.items.size() == count_in(args) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
    const auto count = static_cast<uint64_t>(std::get<N>(args));
    if (!slot.present) return count == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
    return !arg || (arg->numAttrs != 0 && (!arg->attrs || arg->numAttrs > kMaxAttributes))
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
  }
  template <class Table>
  static CUresult resolve(Slot& slot, Table&) {
    return slot.present ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
