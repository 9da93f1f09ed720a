// Whether two memory accesses by lanes of one warp can meet at an address, from the forms of their addresses.
// Private to jit/'s analyses; used by convergence.cc on the thread that compiles.
#pragma once
#include <cstdint>
#include <vector>

#include "server/softgpu/jit/address_form.h"

namespace gpupool::softgpu {

struct MemoryAccess {
  uint32_t instruction = 0;
  uint32_t block = 0;  // index of the block in the flow graph
  uint32_t bytes = 0;
  bool is_store = false;
  bool is_volatile = false;
  bool is_global = false;
  AddressForm form;
};

// How the addresses of two accesses by lanes of one warp relate.
enum class Relation : uint8_t {
  apart,         // different lanes never access the same address
  same_uniform,  // all lanes access one common address
  by_data,       // lanes may access the same address, depending on values from memory
  likely,        // lanes may access the same address, depending on indices
  certain,       // lanes do access the same address
};
// `later`: the first access may belong to an earlier loop iteration than the second. `changes`: per register,
// whether its value may differ between iterations.
Relation relation(const AddressForms& forms, const MemoryAccess& a, const MemoryAccess& b, bool later,
                  const std::vector<bool>& changes);

// Returns true if the accesses are to elements of one array whose indices count with the lane and differ by
// less than a warp (`g[t]`, `g[t + 1]`, also with a loop counter times a larger constant).
bool are_neighbouring_elements(const AddressForms& forms, const MemoryAccess& a, const MemoryAccess& b,
                               bool later, const std::vector<bool>& changes);

}  // namespace gpupool::softgpu
