// cuda.h with every versioned prototype (cuMemAlloc and cuMemAlloc_v2, ..._ptsz) and without its renaming macros.
#pragma once
#ifdef CUDA_VERSION
#error "include protocol/cuda/cuda_header.h instead of cuda.h"
#endif
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
