// PTX's scalar types and state spaces. Plain values; thread-safe.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace gpupool::softgpu::ptx {

enum class Type : uint8_t {
  none,
  pred,
  b8,
  b16,
  b32,
  b64,
  b128,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  f16,
  f16x2,
  bf16,
  bf16x2,
  f32,
  f64,
};

// shared_cluster: the shared windows of all blocks of a cluster; variables lie in `shared`.
enum class Space : uint8_t { generic, reg, global, shared, shared_cluster, local, constant, param };

// Returns the type named by a modifier such as "u32" (without the dot).
std::optional<Type> find_type(std::string_view name);
std::optional<Space> find_space(std::string_view name);

uint32_t bits_of(Type type);  // pred: 1
inline uint32_t bytes_of(Type type) {
  return (bits_of(type) + 7) / 8;
}
inline bool is_signed(Type type) {
  return type >= Type::s8 && type <= Type::s64;
}
inline bool is_unsigned(Type type) {
  return type >= Type::u8 && type <= Type::u64;
}
inline bool is_untyped(Type type) {
  return type >= Type::b8 && type <= Type::b128;
}
inline bool is_integer(Type type) {
  return is_signed(type) || is_unsigned(type);
}
inline bool is_float(Type type) {
  return type >= Type::f16;
}
inline bool is_packed_half(Type type) {
  return type == Type::f16x2 || type == Type::bf16x2;
}
inline bool is_half(Type type) {
  return type >= Type::f16 && type <= Type::bf16x2;
}

}  // namespace gpupool::softgpu::ptx
