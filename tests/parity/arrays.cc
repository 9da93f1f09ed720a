// Arrays, texture and surface objects, texture references.
#include <cstring>
#include <vector>

#include "tests/parity/show.h"

namespace parity {
namespace {

const char kModule[] = R"(
.version 8.0
.target sm_75
.address_size 64
.global .texref picture;
.global .surfref board;
.visible .entry look(.param .u64 out, .param .u64 object) {
  .reg .b64 %rd<4>;
  .reg .f32 %f<10>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [object];
  mov.f32 %f1, 0f3FC00000;
  tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%rd2, {%f1, %f1}];
  st.global.f32 [%rd1], %f2;
  tex.2d.v4.f32.f32 {%f6, %f7, %f8, %f9}, [picture, {%f1, %f1}];
  st.global.f32 [%rd1+4], %f6;
  mov.u32 %r1, 7;
  sust.b.2d.b32.trap [board, {4, 1}], {%r1};
  ret;
}
)";

constexpr size_t kWidth = 40, kHeight = 30, kDepth = 3;
constexpr CUarray_format kFormats[] = {CU_AD_FORMAT_UNSIGNED_INT8,
                                       CU_AD_FORMAT_SIGNED_INT16,
                                       CU_AD_FORMAT_HALF,
                                       CU_AD_FORMAT_FLOAT,
                                       static_cast<CUarray_format>(0xc2),
                                       static_cast<CUarray_format>(0x50),
                                       static_cast<CUarray_format>(0x91),
                                       static_cast<CUarray_format>(0xb0),
                                       static_cast<CUarray_format>(0x77)};

void shapes() {
  const struct {
    size_t width, height, depth;
    unsigned flags;
  } kShapes[] = {{64, 0, 0, 0},
                 {64, 32, 0, 0},
                 {64, 32, 8, 0},
                 {64, 0, 5, CUDA_ARRAY3D_LAYERED},
                 {64, 32, 5, CUDA_ARRAY3D_LAYERED},
                 {32, 32, 6, CUDA_ARRAY3D_CUBEMAP},
                 {32, 32, 12, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED},
                 {32, 31, 6, CUDA_ARRAY3D_CUBEMAP},
                 {32, 32, 7, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED},
                 {0, 0, 0, 0},
                 {0, 32, 0, 0},
                 {64, 0, 8, 0},
                 {200000, 0, 0, 0},
                 {64, 32, 0, CUDA_ARRAY3D_SURFACE_LDST},
                 {64, 32, 0, CUDA_ARRAY3D_TEXTURE_GATHER},
                 {64, 32, 8, CUDA_ARRAY3D_TEXTURE_GATHER},
                 {64, 32, 0, 0x8000},
                 {size_t{1} << 40, 0, 0, 0},
                 {16384, 16384, 16384, 0}};
  for (const auto& shape : kShapes) {
    const CUDA_ARRAY3D_DESCRIPTOR wanted{shape.width, shape.height, shape.depth, CU_AD_FORMAT_FLOAT,
                                         4,           shape.flags};
    CUarray array = nullptr;
    const CUresult made = cuArray3DCreate(&array, &wanted);
    CUDA_ARRAY3D_DESCRIPTOR told{};
    const CUresult described = cuArray3DGetDescriptor(&told, array);
    std::printf("array %zu %zu %zu %x -> %s, described %s %zu %zu %zu %x, destroyed %s\n", shape.width,
                shape.height, shape.depth, shape.flags, name_of(made), name_of(described), told.Width,
                told.Height, told.Depth, told.Flags, name_of(cuArrayDestroy(array)));
    CUmipmappedArray levels = nullptr;
    const CUresult mipmapped = cuMipmappedArrayCreate(&levels, &wanted, 3);
    CUarray level = nullptr;
    const CUresult got = cuMipmappedArrayGetLevel(&level, levels, 2);
    told = {};
    (void)cuArray3DGetDescriptor(&told, level);
    std::printf("mipmapped -> %s, level %s %zu %zu %zu, destroyed %s\n", name_of(mipmapped), name_of(got),
                told.Width, told.Height, told.Depth, name_of(cuMipmappedArrayDestroy(levels)));
  }
  for (const CUarray_format format : kFormats) {
    for (unsigned channels = 0; channels < 6; ++channels) {
      const CUDA_ARRAY_DESCRIPTOR wanted{16, 16, format, channels};
      CUarray array = nullptr;
      std::printf("format %x with %u channels -> %s\n", format, channels,
                  name_of(cuArrayCreate(&array, &wanted)));
      if (array) cuArrayDestroy(array);
    }
  }
  const CUDA_ARRAY_DESCRIPTOR flat{16, 16, CU_AD_FORMAT_FLOAT, 1};
  CUarray array = nullptr, other = nullptr;
  CUDA_ARRAY_DESCRIPTOR told{};
  SHOW(cuArrayCreate(nullptr, &flat));
  SHOW(cuArrayCreate(&array, nullptr));
  SHOW(cuArrayCreate(&array, &flat));
  SHOW_VALUE(cuArrayGetDescriptor(&told, array), "%zu %zu %x %u", told.Width, told.Height, told.Format,
             told.NumChannels);
  SHOW(cuArrayGetDescriptor(nullptr, array));
  SHOW(cuArrayGetDescriptor(&told, nullptr));
  SHOW(cuArrayGetDescriptor(&told, wild<CUarray>()));
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  SHOW(cuArrayGetSparseProperties(&sparse, array));
  SHOW(cuArrayGetSparseProperties(&sparse, wild<CUarray>()));
  SHOW(cuArrayGetMemoryRequirements(&needs, array, 0));
  SHOW(cuArrayGetMemoryRequirements(&needs, array, 77));
  SHOW(cuArrayGetPlane(&other, array, 0));
  SHOW(cuArrayGetPlane(nullptr, array, 0));
  SHOW(cuMipmappedArrayGetLevel(&other, wild<CUmipmappedArray>(), 0));
  SHOW(cuArrayDestroy(array));
  SHOW(cuArrayDestroy(array));
  SHOW(cuArrayDestroy(nullptr));
  SHOW(cuMipmappedArrayDestroy(nullptr));
  SHOW(cuMipmappedArrayCreate(nullptr, nullptr, 1));
  const CUDA_ARRAY3D_DESCRIPTOR shape{16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUmipmappedArray levels = nullptr;
  SHOW(cuMipmappedArrayCreate(&levels, &shape, 3));
  SHOW(cuMipmappedArrayGetSparseProperties(&sparse, levels));
  SHOW(cuMipmappedArrayGetSparseProperties(&sparse, wild<CUmipmappedArray>()));
  SHOW(cuMipmappedArrayGetMemoryRequirements(&needs, levels, 0));
  SHOW(cuMipmappedArrayGetMemoryRequirements(&needs, levels, 77));
  SHOW(cuMipmappedArrayDestroy(levels));
}

unsigned checksum(const std::vector<float>& values) {
  unsigned sum = 0;
  for (const float value : values) {
    unsigned bits = 0;
    std::memcpy(&bits, &value, 4);
    sum = sum * 31 + bits;
  }
  return sum;
}

// Boxes between arrays, host memory and device memory, synchronously and asynchronously.
void copies_between_arrays() {
  const CUDA_ARRAY3D_DESCRIPTOR wanted{kWidth, kHeight, kDepth, CU_AD_FORMAT_FLOAT, 1, 0};
  CUarray array = nullptr, second = nullptr, line = nullptr;
  CUdeviceptr device = 0;
  CUstream stream = nullptr;
  SHOW(cuArray3DCreate(&array, &wanted));
  SHOW(cuArray3DCreate(&second, &wanted));
  SHOW(cuMemAlloc(&device, 1 << 20));
  SHOW(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<float> values(kWidth * kHeight * kDepth), back(values.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.25f;
  void* pinned = nullptr;
  SHOW(cuMemHostAlloc(&pinned, values.size() * 4, 0));
  CUDA_MEMCPY3D box{};
  const auto from_host = [&](void* host) {
    box.srcMemoryType = CU_MEMORYTYPE_HOST, box.srcHost = host, box.srcPitch = kWidth * 4,
    box.srcHeight = kHeight;
  };
  const auto to_host = [&](void* host) {
    box.dstMemoryType = CU_MEMORYTYPE_HOST, box.dstHost = host, box.dstPitch = kWidth * 4,
    box.dstHeight = kHeight;
  };
  const auto from_array = [&](CUarray a) { box.srcMemoryType = CU_MEMORYTYPE_ARRAY, box.srcArray = a; };
  const auto to_array = [&](CUarray a) { box.dstMemoryType = CU_MEMORYTYPE_ARRAY, box.dstArray = a; };
  box.WidthInBytes = kWidth * 4, box.Height = kHeight, box.Depth = kDepth;
  from_host(values.data()), to_array(array);
  SHOW(cuMemcpy3D(&box));
  from_array(array), to_array(second);
  SHOW(cuMemcpy3DAsync(&box, stream));
  from_array(second), to_host(back.data());
  SHOW(cuMemcpy3DAsync(&box, stream));
  SHOW(cuStreamSynchronize(stream));
  std::printf("there and back: %d, %08x\n", back == values, checksum(back));
  // A part of the array, through device memory.
  from_array(array);
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE, box.dstDevice = device, box.dstPitch = 512, box.dstHeight = 64;
  box.srcXInBytes = 8, box.srcY = 2, box.srcZ = 1, box.dstXInBytes = 16, box.dstY = 3, box.dstZ = 2;
  box.WidthInBytes = 80, box.Height = 10, box.Depth = 2;
  SHOW(cuMemcpy3DAsync(&box, stream));
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE, box.srcDevice = device, box.srcPitch = 512, box.srcHeight = 64;
  box.srcXInBytes = 16, box.srcY = 3, box.srcZ = 2, box.dstXInBytes = 0, box.dstY = 0, box.dstZ = 0;
  to_array(second);
  SHOW(cuMemcpy3DAsync(&box, stream));
  box = {};
  box.WidthInBytes = kWidth * 4, box.Height = kHeight, box.Depth = kDepth;
  from_array(second), to_host(pinned);
  SHOW(cuMemcpy3DAsync(&box, stream));
  SHOW(cuStreamSynchronize(stream));
  std::memcpy(back.data(), pinned, back.size() * 4);
  std::printf("a part moved: %08x\n", checksum(back));
  std::memcpy(pinned, values.data(), values.size() * 4);
  from_host(pinned), to_array(second);
  SHOW(cuMemcpy3DAsync(&box, stream));
  SHOW(cuStreamSynchronize(stream));
  from_array(second), to_host(back.data());
  SHOW(cuMemcpy3D(&box));
  std::printf("pinned: %d\n", back == values);

  const auto changed = [&](const char* what, auto&& change) {
    CUDA_MEMCPY3D copy = box;
    change(copy);
    SHOW_NAMED(cuMemcpy3D(&copy), (std::string("array copy, ") + what).c_str());
  };
  changed("no depth", [](auto& c) { c.Depth = 0; });
  changed("half a texel", [](auto& c) { c.WidthInBytes = 6; });
  changed("between texels", [](auto& c) { c.srcXInBytes = 2, c.WidthInBytes = 8; });
  changed("too wide", [](auto& c) { c.WidthInBytes += 4; });
  changed("too high", [](auto& c) { c.srcY = 1; });
  changed("too deep", [](auto& c) { c.srcZ = 1; });
  changed("far out", [](auto& c) { c.srcZ = ~size_t{0}; });
  changed("LOD", [](auto& c) { c.srcLOD = 1; });
  changed("no array", [](auto& c) { c.srcArray = nullptr; });
  changed("wild<array>", [](auto& c) { c.srcArray = wild<CUarray>(); });
  changed("wild device", [](auto& c) { c.dstMemoryType = CU_MEMORYTYPE_DEVICE, c.dstDevice = kWildAddress; });
  changed("pitch too small", [](auto& c) { c.dstPitch = 8; });
  changed("unknown memory type", [](auto& c) { c.dstMemoryType = static_cast<CUmemorytype>(9); });

  const CUDA_ARRAY_DESCRIPTOR flat{256, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  std::vector<unsigned char> bytes(256), again(256);
  for (int i = 0; i < 256; ++i) bytes[static_cast<size_t>(i)] = static_cast<unsigned char>(i * 7);
  SHOW(cuArrayCreate(&line, &flat));
  SHOW(cuMemcpyHtoA(line, 0, bytes.data(), 256));
  SHOW(cuMemcpyHtoAAsync(line, 16, bytes.data(), 32, stream));
  SHOW(cuMemcpyAtoD(device, line, 8, 64));
  SHOW(cuMemcpyDtoA(line, 100, device, 64));
  SHOW(cuMemcpyAtoA(line, 0, line, 128, 64));
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuMemcpyAtoHAsync(again.data(), line, 0, 128, stream));
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuMemcpyAtoH(again.data() + 128, line, 128, 128));
  unsigned sum = 0;
  for (const unsigned char byte : again) sum = sum * 31 + byte;
  std::printf("bytes: %08x\n", sum);
  SHOW(cuMemcpyHtoA(line, 200, bytes.data(), 57));
  SHOW(cuMemcpyHtoA(nullptr, 0, bytes.data(), 1));
  SHOW(cuMemcpyAtoD(kWildAddress, line, 0, 4));
  SHOW(cuMemcpyAtoHAsync(again.data(), line, 0, 4, wild<CUstream>()));

  // Copies as nodes of a graph.
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphNode node = nullptr, next = nullptr;
  CUcontext context = nullptr;
  SHOW(cuCtxGetCurrent(&context));
  SHOW(cuGraphCreate(&graph, 0));
  SHOW(cuMemsetD8(device, 5, 1 << 20));
  SHOW(cuCtxSynchronize());  // the stream does not wait for the fill
  box = {};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE, box.srcDevice = device, box.WidthInBytes = kWidth * 4,
  box.Height = kHeight, box.Depth = 1;
  box.srcPitch = kWidth * 4, box.srcHeight = kHeight, to_array(array);
  SHOW(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &box, context));
  from_array(array), to_array(second);
  SHOW(cuGraphAddMemcpyNode(&next, graph, &node, 1, &box, context));
  box.srcArray = wild<CUarray>();
  SHOW_UNLESS_GUARDED(cuGraphAddMemcpyNode(&next, graph, &node, 1, &box, context));
  SHOW(cuGraphInstantiateWithFlags(&executable, graph, 0));
  SHOW(cuGraphLaunch(executable, stream));
  SHOW(cuStreamSynchronize(stream));
  box = {};
  box.WidthInBytes = kWidth * 4, box.Height = kHeight, box.Depth = kDepth;
  from_array(second), to_host(back.data());
  SHOW(cuMemcpy3D(&box));
  std::printf("by a graph: %08x\n", checksum(back));
  SHOW(cuGraphExecDestroy(executable));
  SHOW(cuGraphDestroy(graph));
  SHOW(cuMemFreeHost(pinned));
  for (CUarray one : {array, second, line}) SHOW(cuArrayDestroy(one));
  SHOW_UNLESS_GUARDED(cuMemcpyHtoA(line, 0, bytes.data(), 4));
  SHOW(cuMemFree(device));
  SHOW(cuStreamDestroy(stream));
}

void textures() {
  const CUDA_ARRAY3D_DESCRIPTOR wanted{16, 16, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST};
  CUarray array = nullptr;
  SHOW(cuArray3DCreate(&array, &wanted));
  std::vector<float> values(256);
  for (size_t i = 0; i < 256; ++i) values[i] = static_cast<float>(i);
  CUDA_MEMCPY2D fill{};
  fill.srcMemoryType = CU_MEMORYTYPE_HOST, fill.srcHost = values.data(), fill.srcPitch = 64;
  fill.dstMemoryType = CU_MEMORYTYPE_ARRAY, fill.dstArray = array, fill.WidthInBytes = 64, fill.Height = 16;
  SHOW(cuMemcpy2D(&fill));
  CUDA_RESOURCE_DESC resource{}, told{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  CUDA_TEXTURE_DESC reading{}, read{};
  CUDA_RESOURCE_VIEW_DESC view{}, seen{};
  CUtexObject texture = 0, other = 0;
  CUsurfObject surface = 0;
  SHOW(cuTexObjectCreate(nullptr, &resource, &reading, nullptr));
  SHOW(cuTexObjectCreate(&texture, nullptr, &reading, nullptr));
  SHOW(cuTexObjectCreate(&texture, &resource, nullptr, nullptr));
  SHOW(cuTexObjectCreate(&texture, &resource, &reading, nullptr));
  SHOW_VALUE(cuTexObjectGetResourceDesc(&told, texture), "%d %d", told.resType,
             told.res.array.hArray == array);
  SHOW_VALUE(cuTexObjectGetTextureDesc(&read, texture), "%d", read.filterMode);
  SHOW(cuTexObjectGetResourceViewDesc(&seen, texture));
  SHOW(cuTexObjectGetResourceDesc(nullptr, texture));
  SHOW(cuTexObjectGetResourceDesc(&told, 12345));
  SHOW(cuSurfObjectGetResourceDesc(&told, texture));
  view.format = CU_RES_VIEW_FORMAT_UINT_1X32, view.width = view.height = 16;
  SHOW(cuTexObjectCreate(&other, &resource, &reading, &view));
  SHOW_VALUE(cuTexObjectGetResourceViewDesc(&seen, other), "%d %zu", seen.format, seen.width);
  SHOW(cuTexObjectDestroy(other));
  SHOW(cuTexObjectDestroy(other));
  view.format = CU_RES_VIEW_FORMAT_UINT_4X32;
  SHOW(cuTexObjectCreate(&other, &resource, &reading, &view));
  SHOW(cuSurfObjectCreate(&surface, &resource));
  SHOW_VALUE(cuSurfObjectGetResourceDesc(&told, surface), "%d %d", told.resType,
             told.res.array.hArray == array);
  SHOW(cuSurfObjectCreate(nullptr, &resource));
  SHOW(cuSurfObjectDestroy(texture));
  SHOW(cuSurfObjectDestroy(surface));
  // Programs destroy the null object, and make surfaces of arrays without CUDA_ARRAY3D_SURFACE_LDST
  // (bindlessTexture of NVIDIA's samples).
  REQUIRE(CUDA_SUCCESS, cuTexObjectDestroy(0));
  REQUIRE(CUDA_SUCCESS, cuSurfObjectDestroy(0));
  CUDA_ARRAY3D_DESCRIPTOR without = wanted;
  without.Flags = 0;
  CUDA_RESOURCE_DESC of_plain = resource;
  REQUIRE(CUDA_SUCCESS, cuArray3DCreate(&of_plain.res.array.hArray, &without));
  REQUIRE(CUDA_SUCCESS, cuSurfObjectCreate(&surface, &of_plain));
  REQUIRE(CUDA_SUCCESS, cuSurfObjectDestroy(surface));
  REQUIRE(CUDA_SUCCESS, cuArrayDestroy(of_plain.res.array.hArray));
  const auto changed = [&](const char* what, auto&& change) {
    CUDA_RESOURCE_DESC r = resource;
    CUDA_TEXTURE_DESC t = reading;
    change(r, t);
    CUtexObject made = 0;
    SHOW_NAMED(cuTexObjectCreate(&made, &r, &t, nullptr), (std::string("texture, ") + what).c_str());
    if (made) cuTexObjectDestroy(made);
  };
  changed("no array", [](auto& r, auto&) { r.res.array.hArray = nullptr; });
  changed("wild<array>", [](auto& r, auto&) { r.res.array.hArray = wild<CUarray>(); });
  changed("flags", [](auto& r, auto&) { r.flags = 1; });
  changed("unknown type", [](auto& r, auto&) { r.resType = static_cast<CUresourcetype>(9); });
  changed("unknown filter", [](auto&, auto& t) { t.filterMode = static_cast<CUfilter_mode>(7); });
  changed("unknown address mode", [](auto&, auto& t) { t.addressMode[1] = static_cast<CUaddress_mode>(7); });
  changed("unknown flags", [](auto&, auto& t) { t.flags = 0x1000; });
  CUdeviceptr memory = 0;
  SHOW(cuMemAlloc(&memory, 4096));
  const auto linear = [&](auto& r) {
    r = {};
    r.resType = CU_RESOURCE_TYPE_LINEAR;
    r.res.linear = {memory, CU_AD_FORMAT_FLOAT, 1, 4096};
  };
  changed("memory", [&](auto& r, auto&) { linear(r); });
  changed("memory that is not there", [&](auto& r, auto&) { linear(r), r.res.linear.devPtr = kWildAddress; });
  changed("null memory", [&](auto& r, auto&) { linear(r), r.res.linear.devPtr = 0; });
  changed("memory in no format", [&](auto& r, auto&) { linear(r), r.res.linear.numChannels = 3; });
  changed("no bytes", [&](auto& r, auto&) { linear(r), r.res.linear.sizeInBytes = 0; });
  changed("bytes beyond", [&](auto& r, auto&) { linear(r), r.res.linear.sizeInBytes = size_t{1} << 50; });

  CUmodule module = nullptr;
  CUtexref reference = nullptr, own = nullptr;
  CUsurfref board = nullptr;
  CUfunction look = nullptr;
  SHOW(cuModuleLoadData(&module, kModule));
  SHOW(cuModuleGetTexRef(&reference, module, "nothing"));
  SHOW(cuModuleGetTexRef(&reference, module, "board"));
  SHOW(cuModuleGetTexRef(nullptr, module, "picture"));
  SHOW(cuModuleGetTexRef(&reference, nullptr, "picture"));
  SHOW(cuModuleGetTexRef(&reference, module, "picture"));
  SHOW(cuModuleGetSurfRef(&board, module, "board"));
  CUarray bound = nullptr;
  SHOW(cuTexRefGetArray(&bound, reference));
  SHOW(cuTexRefSetArray(reference, array, CU_TRSA_OVERRIDE_FORMAT));
  SHOW(cuTexRefSetArray(reference, nullptr, CU_TRSA_OVERRIDE_FORMAT));
  SHOW_VALUE(cuTexRefGetArray(&bound, reference), "%d", bound == array);
  SHOW(cuTexRefSetAddressMode(reference, 0, CU_TR_ADDRESS_MODE_CLAMP));
  SHOW(cuTexRefSetAddressMode(reference, 9, CU_TR_ADDRESS_MODE_CLAMP));
  CUaddress_mode mode{};
  CUarray_format format{};
  float border[4] = {1, 2, 3, 4}, least = -1, most = -1;
  int channels = 0;
  unsigned flags = 9;
  SHOW_VALUE(cuTexRefGetAddressMode(&mode, reference, 0), "%d", mode);
  SHOW_VALUE(cuTexRefGetFormat(&format, &channels, reference), "%x %d", format, channels);
  SHOW(cuTexRefSetBorderColor(reference, border));
  SHOW(cuTexRefSetBorderColor(reference, nullptr));
  border[2] = 0;
  SHOW_VALUE(cuTexRefGetBorderColor(border, reference), "%g", border[2]);
  SHOW(cuTexRefSetMipmapLevelClamp(reference, 1, 2));
  SHOW_VALUE(cuTexRefGetMipmapLevelClamp(&least, &most, reference), "%g %g", least, most);
  SHOW(cuTexRefSetFlags(reference, 0));
  SHOW_VALUE(cuTexRefGetFlags(&flags, reference), "%u", flags);
  SHOW(cuTexRefSetFilterMode(wild<CUtexref>(), CU_TR_FILTER_MODE_POINT));
  SHOW(cuSurfRefSetArray(board, array, 0));
  SHOW(cuSurfRefSetArray(board, array, 1));
  SHOW(cuModuleGetFunction(&look, module, "look"));
  void* parameters[] = {&memory, &texture};
  SHOW(cuLaunchKernel(look, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW(cuCtxSynchronize());
  float result[2] = {};
  SHOW_VALUE(cuMemcpyDtoH(result, memory, sizeof result), "%g %g", result[0], result[1]);
  unsigned written = 0;
  SHOW_VALUE(cuMemcpyAtoH(&written, array, 4, 4), "%u", written);
  SHOW(cuTexRefCreate(&own));
  SHOW(cuTexRefDestroy(reference));
  SHOW(cuTexRefDestroy(own));
  SHOW(cuTexRefDestroy(own));
  SHOW(cuModuleUnload(module));
  SHOW_UNLESS_GUARDED(cuTexRefSetFlags(reference, 0));
  SHOW(cuTexObjectDestroy(texture));
  // A kernel that uses a destroyed texture leaves the context in an error state.
  SHOW(cuModuleLoadData(&module, kModule));
  SHOW(cuModuleGetFunction(&look, module, "look"));
  SHOW(cuLaunchKernel(look, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW(cuCtxSynchronize());
  SHOW(cuArrayDestroy(array));
}

}  // namespace

void arrays() {
  shapes();
  copies_between_arrays();
  textures();
}

}  // namespace parity
