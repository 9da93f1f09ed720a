// What cuLinkComplete hands out, and loading it: one PTX file is itself; several are kept together in a
// format of softgpu's own, since they are linked when they are loaded.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "protocol/cuda/cuda_header.h"
#include "server/softgpu/jit/program.h"

namespace gpupool::softgpu {
class Device;
}

namespace gpupool::softgpu::api {

std::string make_linked_image(const std::vector<std::string>& texts);

// As load_image (runtime/image.h), for everything that a program may pass, linked images included.
CUresult load_any_image(const void* image, const Device& device, std::shared_ptr<const Program>* program,
                        std::string* message);

}  // namespace gpupool::softgpu::api
