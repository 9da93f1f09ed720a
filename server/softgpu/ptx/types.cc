#include "server/softgpu/ptx/types.h"

namespace gpupool::softgpu::ptx {
namespace {

struct TypeRow {
  std::string_view name;
  uint32_t bits;
};
// In the order of the enumeration.
constexpr TypeRow kTypes[] = {
    {"", 0},     {"pred", 1}, {"b8", 8},     {"b16", 16},  {"b32", 32},    {"b64", 64}, {"b128", 128},
    {"u8", 8},   {"u16", 16}, {"u32", 32},   {"u64", 64},  {"s8", 8},      {"s16", 16}, {"s32", 32},
    {"s64", 64}, {"f16", 16}, {"f16x2", 32}, {"bf16", 16}, {"bf16x2", 32}, {"f32", 32}, {"f64", 64},
};
static_assert(std::size(kTypes) == static_cast<size_t>(Type::f64) + 1);

}  // namespace

std::optional<Type> find_type(std::string_view name) {
  for (size_t i = 1; i < std::size(kTypes); ++i)
    if (kTypes[i].name == name) return static_cast<Type>(i);
  return std::nullopt;
}

std::optional<Space> find_space(std::string_view name) {
  // Sub-qualifiers that do not change the space: ".shared::cta" is the block's own window, and the operand's
  // name tells ".param::entry" from ".param::func".
  if (name == "global") return Space::global;
  if (name == "shared" || name == "shared::cta") return Space::shared;
  if (name == "local") return Space::local;
  if (name == "const") return Space::constant;
  if (name == "param" || name == "param::entry" || name == "param::func") return Space::param;
  return std::nullopt;
}

uint32_t bits_of(Type type) {
  return kTypes[static_cast<size_t>(type)].bits;
}

}  // namespace gpupool::softgpu::ptx
