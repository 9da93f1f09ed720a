// Compiles images that programs pass (fat binaries, their wrappers, cubins, PTX), for modules, libraries and
// the linker. Any thread.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "protocol/images/fatbin.h"
#include "server/softgpu/jit/program.h"

namespace gpupool::softgpu {

class Device;

// Selects, unpacks and compiles the code that the device can run. On failure, `message` gets one line for
// JitOptions to report. max_registers: per thread; 0: no limit.
CUresult load_image(const void* image, const Device& device, uint32_t max_registers,
                    std::shared_ptr<const Program>* program, std::string* message);
CUresult load_texts(std::span<const std::string_view> texts, const Device& device,
                    std::shared_ptr<const Program>* program, std::string* message);

// Charges the simulated cost of compiling PTX texts (costs.h).
void charge_jit(std::span<const std::string_view> texts);

// Returns the PTX texts that the device would load of an image.
CUresult unpack_image(const cuda::ImageSpans& spans, const Device& device, std::vector<std::string>* texts,
                      std::string* message);

// Limits the registers per thread of all kernels in PTX texts; 0: no limit.
void limit_registers(uint32_t max_registers, std::vector<std::string>* texts);

// Reads a whole file. CUDA_ERROR_FILE_NOT_FOUND if it cannot be opened.
CUresult read_file(const char* path, std::string* content);

}  // namespace gpupool::softgpu
