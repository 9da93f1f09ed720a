// Wrappers for the rows that fill and copy device memory, and that decompress into it (guards.h). Executor's
// thread.
#pragma once
#include "protocol/driver/cuda_header.h"

namespace gpupool::worker::guards {

CUresult set_d8(CUdeviceptr address, unsigned char value, size_t count, CUstream stream);
CUresult set_d16(CUdeviceptr address, unsigned short value, size_t count, CUstream stream);
CUresult set_d32(CUdeviceptr address, unsigned value, size_t count, CUstream stream);
CUresult set_2d8(CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t rows,
                 CUstream stream);
CUresult set_2d16(CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t rows,
                  CUstream stream);
CUresult set_2d32(CUdeviceptr address, size_t pitch, unsigned value, size_t width, size_t rows,
                  CUstream stream);
CUresult copy_bytes(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                   size_t size, CUstream stream);
CUresult copy_2d(const CUDA_MEMCPY2D* asked, CUstream stream);
CUresult copy_3d(const CUDA_MEMCPY3D* asked, CUstream stream);
#if CUDA_VERSION >= 12080
CUresult decompress(CUmemDecompressParams* operations, size_t count, unsigned flags, size_t* failed,
                    CUstream stream);
#endif

}  // namespace gpupool::worker::guards
