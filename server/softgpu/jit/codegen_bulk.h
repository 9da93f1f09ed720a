// Bulk copies and tensor maps. For the code of instructions (instructions.h).
#pragma once
#include "server/softgpu/jit/emitter.h"

namespace gpupool::softgpu::codegen {

void cp_bulk(Emitter& e, Decoded& i, bool reduces);
void st_bulk(Emitter& e, Decoded& i);

}  // namespace gpupool::softgpu::codegen
