// The validity check of NVIDIA's runtime: cudart asks the driver three times per instance for a keyed digest
// of facts about the process, and refuses to work if an answer is wrong. It is answered for interoperability
// alone, by the construction that ZLUDA published. Without the CMake option GPUPOOL_CUDART_VALIDITY_CHECK it
// is not built, and then no program that uses cudart runs. See docs/cuda-abi.md and README.md before shipping
// it. Used by export_tables.cc. No state, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/driver/cuda_header.h"
#include "protocol/driver/export_tables.h"

namespace gpupool::cuda {

#ifdef GPUPOOL_CUDART_VALIDITY_CHECK
inline constexpr bool kValidityCheckBuiltIn = true;
#else
inline constexpr bool kValidityCheckBuiltIn = false;
#endif

// Addresses that go into the digest, as the runtime got them in the tables.
struct ValidityAddresses {
  const void* cudart_interface;
  const void* integrity_check;
  const void* function;
};

// CUDA_ERROR_NOT_SUPPORTED if it is not built.
CUresult answer_validity_check(uint32_t version, uint64_t seconds, const ValidityAddresses& addresses,
                               const DriverHooks& hooks, uint64_t result[2]);

// MD2 (RFC 1319) and HMAC (RFC 2104) over it, with keys of up to 16 bytes. Declared here for tests with their
// test vectors.
using Md2Digest = std::array<unsigned char, 16>;
Md2Digest md2(std::span<const unsigned char> message);
Md2Digest hmac_md2(std::span<const unsigned char> key, std::span<const unsigned char> message);

}  // namespace gpupool::cuda
