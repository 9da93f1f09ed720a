// Runs one PTX instruction, or a few, over arrays of operands on the fake executor.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/server/softgpu/jit/fake_executor.h"

namespace gpupool::softgpu {

// `code` reads %a, %b, %c and writes %d; `types` names their PTX types ("d", "a", "b", "c"; "" if unused). It
// may also use the predicates %p and %q and the scratch registers %t<8> (.b32), %w<8> (.b64) and %h<8>
// (.b16).
std::string instruction_kernel(const std::string& code, const std::array<std::string, 4>& types);

namespace detail {
template <typename T>
std::string type_name() {
  if constexpr (std::is_same_v<T, float>)
    return "f32";
  else if constexpr (std::is_same_v<T, double>)
    return "f64";
  else
    return (std::is_signed_v<T> ? "s" : "u") + std::to_string(sizeof(T) * 8);
}
}  // namespace detail

template <typename D, typename A, typename B = uint32_t, typename C = uint32_t>
std::vector<D> run_instruction(const std::string& code, const std::vector<A>& a, std::vector<B> b = {},
                               std::vector<C> c = {}) {
  b.resize(a.size());
  c.resize(a.size());
  using detail::type_name;
  Loaded loaded(instruction_kernel(code, {type_name<D>(), type_name<A>(), type_name<B>(), type_name<C>()}));
  auto* out = device_array(std::vector<D>(a.size()));
  FakeGrid grid;
  grid.block[0] = 32;
  grid.grid[0] = static_cast<uint32_t>((a.size() + 31) / 32);
  FakeResult result = loaded.run("k", grid, out, device_array(a), device_array(b), device_array(c),
                                 static_cast<uint32_t>(a.size()));
  if (result.fault != FaultKind::none) throw std::runtime_error(code + " faulted");
  return std::vector<D>(out, out + a.size());
}

// All pairs (triples) of the values, as operand arrays.
template <typename A, typename B>
std::pair<std::vector<A>, std::vector<B>> pairs(const std::vector<A>& a, const std::vector<B>& b) {
  std::pair<std::vector<A>, std::vector<B>> out;
  for (A x : a)
    for (B y : b) {
      out.first.push_back(x);
      out.second.push_back(y);
    }
  return out;
}

// True if the bits are equal or both values are NaN.
template <typename T>
bool same(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    if (x != x && y != y) return true;
    return std::memcmp(&x, &y, sizeof(T)) == 0;
  } else {
    return x == y;
  }
}

}  // namespace gpupool::softgpu
