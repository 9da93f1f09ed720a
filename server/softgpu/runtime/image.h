// From an image that a program hands over (fat binary, wrapper, cubin, PTX) to a compiled program.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/cuda/cuda_header.h"
#include "protocol/cuda/fatbin.h"
#include "server/softgpu/jit/program.h"

namespace gpupool::softgpu {

class Device;

// Picks what the device can run, unpacks and compiles it. Failures are CUDA's codes; `message` then says why in one line, for
// JitOptions to report. max_registers: of each thread, 0 for no limit.
CUresult load_image(const void* image, const Device& device, uint32_t max_registers, std::shared_ptr<const Program>* program,
                    std::string* message);
CUresult load_texts(std::span<const std::string_view> texts, const Device& device,
                    std::shared_ptr<const Program>* program, std::string* message);

// Charges the compilation of PTX texts.
void charge_jit(std::span<const std::string_view> texts);

// The PTX texts of an image that the device would load; for the linker.
CUresult unpack_image(const cuda::ImageSpans& spans, const Device& device, std::vector<std::string>* texts,
                      std::string* message);

// Has the kernels of PTX texts use at most so many registers per thread; 0: no limit.
void limit_registers(uint32_t max_registers, std::vector<std::string>* texts);

// Reads a file whole, with a NUL behind its end; CUDA_ERROR_FILE_NOT_FOUND when there is none.
CUresult read_file(const char* path, std::string* content);

}  // namespace gpupool::softgpu
