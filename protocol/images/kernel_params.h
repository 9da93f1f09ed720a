// Reads from a kernel's code where it expects its parameters: for drivers without cuFuncGetParamInfo (before
// 12.4), and for softgpu. The bytes may be hostile: nothing outside them is read. Results point into them.
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "protocol/images/fatbin.h"

namespace gpupool::cuda {

constexpr uint32_t kMaxParamBytes = 32764;  // CUDA's own limit for compute capability 7.0 and later

struct KernelParam {
  uint32_t offset = 0;
  uint32_t size = 0;
  bool operator==(const KernelParam&) const = default;
};

struct KernelLayout {
  std::string_view name;            // mangled
  std::vector<KernelParam> params;  // in the order of declaration
  // One past the last byte of any parameter.
  uint32_t bytes() const { return params.empty() ? 0 : params.back().offset + params.back().size; }
};

// Lists every function in a cubin that has a .nv.info section of its own; device functions have no parameters
// there. INVALID_IMAGE: not a cubin, or its records contradict each other.
CUresult kernels_of_cubin(ByteSpan cubin, std::vector<KernelLayout>& kernels);

// Lists every .entry of a PTX text. INVALID_PTX: a parameter list cannot be parsed.
CUresult kernels_of_ptx(std::string_view ptx, std::vector<KernelLayout>& kernels);

// Lists the kernels of one unpacked entry of an image, of either kind.
CUresult kernels_of_code(CodeKind kind, ByteSpan code, std::vector<KernelLayout>& kernels);

}  // namespace gpupool::cuda
