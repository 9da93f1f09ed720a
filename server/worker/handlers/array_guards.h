// Wrappers for the rows of protocol/calls/array.def (guards.h). Executor's thread.
#pragma once
#include "protocol/driver/cuda_header.h"

namespace gpupool::worker::guards {

CUresult create_array(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape);
CUresult create_mipmapped_array(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape,
                                unsigned levels);
CUresult create_texture(CUtexObject* object, const CUDA_RESOURCE_DESC* resource,
                        const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view);
CUresult destroy_texture(CUtexObject object);
CUresult create_surface(CUsurfObject* object, const CUDA_RESOURCE_DESC* resource);
CUresult destroy_surface(CUsurfObject object);
CUresult create_reference(CUtexref* reference);
CUresult destroy_reference(CUtexref reference);
CUresult bind_array(CUtexref reference, CUarray array, unsigned flags);
CUresult bind_mipmapped_array(CUtexref reference, CUmipmappedArray array, unsigned flags);
CUresult bind_surface(CUsurfref reference, CUarray array, unsigned flags);
CUresult bind_rows(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR* shape, CUdeviceptr address, size_t pitch);

// Replaces the client's handle in a copy by the driver's array. Returns false if the handle is unknown.
bool resolve_array(CUarray& array);

}  // namespace gpupool::worker::guards
