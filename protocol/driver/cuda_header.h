// cuda.h with every versioned prototype (cuMemAlloc and cuMemAlloc_v2, ..._ptsz) and without its renaming
// macros. Targets that use it are compiled with __CUDA_API_VERSION_INTERNAL, so that any other include of
// cuda.h agrees.
#pragma once
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>
#include <cudaProfiler.h>
