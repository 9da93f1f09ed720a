#include <cmath>
#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "tests/server/softgpu/runtime/fixture.h"

extern "C" void softgpu_wish_texture(unsigned long long object);

namespace {

// PTX that nvcc no longer emits, or not in all forms: texture references, queries, reductions, formatted
// stores.
const char kModule[] = R"(
.version 8.0
.target sm_75
.address_size 64
.global .texref picture;
.global .surfref board;

.visible .entry look(.param .u64 out, .param .f32 x, .param .f32 y) {
  .reg .b64 %rd<3>;
  .reg .f32 %f<8>;
  .reg .pred %p<3>;
  .reg .b32 %r<8>;
  ld.param.u64 %rd1, [out];
  ld.param.f32 %f1, [x];
  ld.param.f32 %f2, [y];
  tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [picture, {%f1, %f2}];
  st.global.f32 [%rd1], %f3;
  st.global.f32 [%rd1+4], %f6;
  ret;
}
.visible .entry ask(.param .u64 out, .param .u64 object) {
  .reg .b64 %rd<4>;
  .reg .pred %p<4>;
  .reg .b32 %r<12>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [object];
  txq.width.b32 %r1, [%rd2];
  txq.height.b32 %r2, [%rd2];
  txq.level.width.b32 %r3, [%rd2], 1;
  txq.num_mipmap_levels.b32 %r4, [%rd2];
  txq.normalized_coords.b32 %r5, [%rd2];
  istypep.texref %p1, %rd2;
  istypep.surfref %p2, %rd2;
  selp.u32 %r6, 1, 0, %p1;
  selp.u32 %r7, 1, 0, %p2;
  suq.width.b32 %r8, [board];
  st.global.u32 [%rd1], %r1;
  st.global.u32 [%rd1+4], %r2;
  st.global.u32 [%rd1+8], %r3;
  st.global.u32 [%rd1+12], %r4;
  st.global.u32 [%rd1+16], %r5;
  st.global.u32 [%rd1+20], %r6;
  st.global.u32 [%rd1+24], %r7;
  st.global.u32 [%rd1+28], %r8;
  ret;
}
.visible .entry count(.param .u32 x) {
  .reg .b32 %r<6>;
  ld.param.u32 %r1, [x];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, 1;
  sured.b.add.2d.u32.trap [board, {%r1, 1}], %r3;
  sured.b.max.2d.s32.zero [board, {%r1, 2}], %r2;
  sured.p.or.2d.b32.clamp [board, {3, 100}], %r3;
  ret;
}
.visible .entry paint(.param .u64 surface) {
  .reg .b64 %rd<3>;
  .reg .b32 %r<6>;
  .reg .f32 %f<6>;
  ld.param.u64 %rd1, [surface];
  mov.f32 %f1, 0f3F800000;
  mov.f32 %f2, 0f3F000000;
  mov.f32 %f3, 0fBF800000;
  mov.f32 %f4, 0f40000000;
  sust.p.2d.v4.b32.trap [%rd1, {1, 0}], {%f1, %f2, %f3, %f4};
  ret;
}
.visible .entry edges(.param .u64 out, .param .u64 object, .param .f32 x) {
  .reg .b64 %rd<4>;
  .reg .f32 %f<8>;
  .reg .b32 %r<4>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [object];
  ld.param.f32 %f1, [x];
  tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%rd2, {%f1, %f1}], {1, 0};
  st.global.f32 [%rd1], %f2;
  mov.u32 %r1, 2;
  tex.2d.v4.f32.s32 {%f2, %f3, %f4, %f5}, [%rd2, {%r1, %r1}];
  st.global.f32 [%rd1+4], %f2;
  tex.2d.v2.f16x2.f32 {%r2, %r3}, [%rd2, {%f1, %f1}];
  st.global.u32 [%rd1+8], %r2;
  ret;
}
)";

struct TextureFixture : ContextFixture {
  TextureFixture() {
    REQUIRE_OK(cuModuleLoadData(&module, kModule));
    REQUIRE_OK(cuMemAlloc_v2(&out, 256));
  }
  CUresult run(const char* name, std::vector<void*> parameters, unsigned threads = 1) {
    CUfunction function = nullptr;
    REQUIRE_OK(cuModuleGetFunction(&function, module, name));
    const CUresult result =
        cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, nullptr, parameters.data(), nullptr);
    return result != CUDA_SUCCESS ? result : cuCtxSynchronize();
  }
  template <class T>
  std::vector<T> results(size_t count) {
    std::vector<T> values(count);
    REQUIRE_OK(cuMemcpyDtoH_v2(values.data(), out, count * sizeof(T)));
    return values;
  }
  CUmodule module = nullptr;
  CUdeviceptr out = 0;
};

CUarray make_array(size_t width, size_t height, CUarray_format format, unsigned channels,
                   unsigned flags = 0) {
  const CUDA_ARRAY3D_DESCRIPTOR wanted{width, height, 0, format, channels, flags};
  CUarray array = nullptr;
  REQUIRE_OK(cuArray3DCreate_v2(&array, &wanted));
  return array;
}

template <class T>
void fill(CUarray array, std::vector<T>& values, size_t width, size_t height, bool upload = true) {
  CUDA_MEMCPY2D copy{};
  copy.WidthInBytes = width * sizeof(T);
  copy.Height = height;
  if (upload) {
    copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = values.data();
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = array;
  } else {
    copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = values.data();
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY, copy.srcArray = array;
  }
  REQUIRE_OK(cuMemcpy2D_v2(&copy));
}

CUDA_RESOURCE_DESC of(CUarray array) {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  return resource;
}

}  // namespace

TEST_CASE_METHOD(TextureFixture, "binds and changes and unbinds a module's texture reference") {
  CUtexref reference = nullptr, again = nullptr;
  CHECK(cuModuleGetTexRef(&reference, module, "board") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuModuleGetTexRef(&reference, module, "nothing") == CUDA_ERROR_NOT_FOUND);
  REQUIRE_OK(cuModuleGetTexRef(&reference, module, "picture"));
  REQUIRE_OK(cuModuleGetTexRef(&again, module, "picture"));
  CHECK(reference == again);
  const CUarray array = make_array(4, 4, CU_AD_FORMAT_FLOAT, 1);
  std::vector<float> values(16);
  for (int i = 0; i < 16; ++i) values[i] = static_cast<float>(i);
  fill(array, values, 4, 4);
  CHECK(cuTexRefSetArray(reference, array, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuTexRefSetArray(reference, array, CU_TRSA_OVERRIDE_FORMAT));
  float x = 1.5f, y = 2.5f;
  REQUIRE_OK(run("look", {&out, &x, &y}));
  CHECK(results<float>(2) == std::vector<float>{9, 1});
  REQUIRE_OK(cuTexRefSetFilterMode(reference, CU_TR_FILTER_MODE_LINEAR));
  x = 2.0f;
  REQUIRE_OK(run("look", {&out, &x, &y}));
  CHECK(results<float>(1)[0] == 9.5f);
  REQUIRE_OK(cuTexRefSetFlags(reference, CU_TRSF_NORMALIZED_COORDINATES));
  REQUIRE_OK(cuTexRefSetAddressMode(reference, 0, CU_TR_ADDRESS_MODE_MIRROR));
  CHECK(cuTexRefSetAddressMode(reference, 3, CU_TR_ADDRESS_MODE_WRAP) == CUDA_ERROR_INVALID_VALUE);
  x = -0.375f, y = 0.125f;  // the centre of texel -2, which mirrors texel 1
  REQUIRE_OK(run("look", {&out, &x, &y}));
  CHECK(results<float>(1)[0] == 1.0f);
  CUarray bound = nullptr;
  REQUIRE_OK(cuTexRefGetArray(&bound, reference));
  CHECK(bound == array);
  unsigned flags = 0;
  REQUIRE_OK(cuTexRefGetFlags(&flags, reference));
  CHECK(flags == CU_TRSF_NORMALIZED_COORDINATES);

  // A texture on pitched linear memory instead.
  CUdeviceptr rows = 0;
  REQUIRE_OK(cuMemAlloc_v2(&rows, 512));
  REQUIRE_OK(cuMemcpyHtoD_v2(rows, values.data(), 64));
  const CUDA_ARRAY_DESCRIPTOR shape{4, 2, CU_AD_FORMAT_FLOAT, 1};
  REQUIRE_OK(cuTexRefSetFlags(reference, 0));
  REQUIRE_OK(cuTexRefSetFilterMode(reference, CU_TR_FILTER_MODE_POINT));
  CHECK(cuTexRefSetAddress2D_v3(reference, &shape, rows, 12) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuTexRefSetAddress2D_v3(reference, &shape, rows, 32));
  x = 2, y = 1;
  REQUIRE_OK(run("look", {&out, &x, &y}));
  CHECK(results<float>(1)[0] == 10.0f);
  CHECK(cuTexRefGetArray(&bound, reference) == CUDA_ERROR_INVALID_VALUE);
  size_t offset = 7;
  REQUIRE_OK(cuTexRefSetAddress_v2(&offset, reference, 0, 0));
  CHECK(run("look", {&out, &x, &y}) == CUDA_ERROR_ILLEGAL_ADDRESS);  // nothing is bound
}

TEST_CASE_METHOD(TextureFixture, "surfaces support reductions and formatted writes and queries") {
  CUsurfref reference = nullptr;
  REQUIRE_OK(cuModuleGetSurfRef(&reference, module, "board"));
  const CUarray plain = make_array(8, 4, CU_AD_FORMAT_UNSIGNED_INT32, 1);
  CHECK(cuSurfRefSetArray(reference, plain, 0) == CUDA_ERROR_INVALID_VALUE);
  const CUarray array = make_array(8, 4, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SURFACE_LDST);
  std::vector<uint32_t> values(32, 0);
  fill(array, values, 8, 4);
  REQUIRE_OK(cuSurfRefSetArray(reference, array, 0));
  CUarray bound = nullptr;
  REQUIRE_OK(cuSurfRefGetArray(&bound, reference));
  CHECK(bound == array);
  unsigned x = 8;  // in bytes
  REQUIRE_OK(run("count", {&x}, 100));
  fill(array, values, 8, 4, false);
  CHECK(values[8 + 2] == 100);
  CHECK(values[16 + 2] == 99);
  CHECK(values[24 + 3] == 1);

  const CUarray numbers =
      make_array(4, 1, static_cast<CUarray_format>(0xc8), 4, CUDA_ARRAY3D_SURFACE_LDST);  // SNORM_INT8X4
  CUsurfObject surface = 0;
  CUDA_RESOURCE_DESC resource = of(numbers);
  REQUIRE_OK(cuSurfObjectCreate(&surface, &resource));
  REQUIRE_OK(run("paint", {&surface}));
  std::vector<uint32_t> texels(4);
  fill(numbers, texels, 4, 1, false);
  CHECK(texels[1] == 0x7f81407f);

  const CUDA_ARRAY3D_DESCRIPTOR pyramid{16, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUmipmappedArray levels = nullptr;
  REQUIRE_OK(cuMipmappedArrayCreate(&levels, &pyramid, 100));
  resource = {};
  resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  resource.res.mipmap.hMipmappedArray = levels;
  CUDA_TEXTURE_DESC how{};
  how.flags = CU_TRSF_NORMALIZED_COORDINATES;
  CUtexObject object = 0;
  REQUIRE_OK(cuTexObjectCreate(&object, &resource, &how, nullptr));
  REQUIRE_OK(run("ask", {&out, &object}));
  CHECK(results<uint32_t>(8) == std::vector<uint32_t>{16, 8, 8, 5, 1, 1, 0, 8});
  REQUIRE_OK(cuTexObjectDestroy(object));
  CHECK(cuTexObjectDestroy(object) == CUDA_ERROR_INVALID_VALUE);
  CUarray level = nullptr;
  REQUIRE_OK(cuMipmappedArrayGetLevel(&level, levels, 4));
  CHECK(cuArrayDestroy(level) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE_OK(cuMipmappedArrayDestroy(levels));
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  CHECK(cuArray3DGetDescriptor_v2(&shape, level) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE_METHOD(TextureFixture, "offsets, texel numbers and halves") {
  const CUarray array = make_array(4, 4, CU_AD_FORMAT_FLOAT, 1);
  std::vector<float> values(16);
  for (int i = 0; i < 16; ++i) values[i] = static_cast<float>(i);
  fill(array, values, 4, 4);
  CUDA_RESOURCE_DESC resource = of(array);
  CUDA_TEXTURE_DESC how{};
  CUtexObject object = 0;
  REQUIRE_OK(cuTexObjectCreate(&object, &resource, &how, nullptr));
  float x = 1.5f;
  REQUIRE_OK(run("edges", {&out, &object, &x}));
  CHECK(results<float>(2) == std::vector<float>{6, 10});
  CHECK(results<uint32_t>(3)[2] == 0x4500);  // the halves 5 and 0

  // A view with another format of the same size.
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_UINT_1X32;
  view.width = view.height = 4;
  CUtexObject bits = 0;
  REQUIRE_OK(cuTexObjectCreate(&bits, &resource, &how, &view));
  REQUIRE_OK(run("edges", {&out, &bits, &x}));
  CHECK(results<float>(1)[0] == 6.0f);
  view.format = CU_RES_VIEW_FORMAT_UINT_2X32;
  CHECK(cuTexObjectCreate(&bits, &resource, &how, &view) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuArrayDestroy(array));
  CHECK(cuArrayDestroy(array) == CUDA_ERROR_INVALID_HANDLE);
  CUtexObject handle = reinterpret_cast<uint64_t>(array);
  CHECK(run("edges", {&out, &handle, &x}) == CUDA_ERROR_ILLEGAL_ADDRESS);  // an array is not a texture
}

TEST_CASE_METHOD(TextureFixture, "mirrored coordinates keep their precision however large they are") {
  const CUarray array = make_array(3, 3, CU_AD_FORMAT_FLOAT, 1);
  std::vector<float> values(9);
  for (int i = 0; i < 9; ++i) values[i] = static_cast<float>(i);
  fill(array, values, 3, 3);
  const CUDA_RESOURCE_DESC resource = of(array);
  CUDA_TEXTURE_DESC how{};
  how.flags = CU_TRSF_NORMALIZED_COORDINATES;
  for (CUaddress_mode& mode : how.addressMode) mode = CU_TR_ADDRESS_MODE_MIRROR;
  CUtexObject object = 0;
  REQUIRE_OK(cuTexObjectCreate(&object, &resource, &how, nullptr));
  const auto at = [&](float x) {
    REQUIRE_OK(run("edges", {&out, &object, &x}));
    return results<float>(1)[0];
  };
  // 3 * 7000000.5 is not representable as a float.
  for (const float x : {0.5f, 7000000.5f}) CHECK(at(x) == 5);  // row 1, and column 1 with an offset of 1
  for (const float x : {-0.5f, -7000000.5f})
    CHECK(at(x) == 3);  // in a mirrored period the offset leads to column 0
}

TEST_CASE_METHOD(TextureFixture, "kernels launched before can use destroyed textures and surfaces") {
  const CUarray array = make_array(4, 4, CU_AD_FORMAT_FLOAT, 1),
                board = make_array(4, 1, static_cast<CUarray_format>(0xc8), 4,
                                   CUDA_ARRAY3D_SURFACE_LDST);  // SNORM_INT8X4
  std::vector<float> values(16, 6);
  fill(array, values, 4, 4);
  const CUDA_RESOURCE_DESC picture = of(array), canvas = of(board);
  const CUDA_TEXTURE_DESC how{};
  CUtexObject texture = 0;
  CUsurfObject surface = 0;
  REQUIRE_OK(cuTexObjectCreate(&texture, &picture, &how, nullptr));
  REQUIRE_OK(cuSurfObjectCreate(&surface, &canvas));
  CUstream stream = nullptr;
  REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const auto loaded = [&](const char* name) {  // loading a function would wait for the gate
    CUfunction function = nullptr;
    REQUIRE_OK(cuModuleGetFunction(&function, module, name));
    REQUIRE_OK(cuFuncLoad(function));
    return function;
  };
  CUfunction edges = loaded("edges"), paint = loaded("paint");
  std::promise<void> gate;
  REQUIRE_OK(cuLaunchHostFunc(
      stream, [](void* waits) { static_cast<std::promise<void>*>(waits)->get_future().wait(); }, &gate));
  float x = 1.5f;
  const auto launch = [&](CUfunction function, std::vector<void*> parameters) {
    REQUIRE_OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.data(), nullptr));
  };
  launch(edges, {&out, &texture, &x});
  launch(paint, {&surface});
  REQUIRE_OK(cuTexObjectDestroy(texture));
  REQUIRE_OK(cuSurfObjectDestroy(surface));
  CUDA_RESOURCE_DESC found{};
  CHECK(cuTexObjectGetResourceDesc(&found, texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuSurfObjectDestroy(surface) == CUDA_ERROR_INVALID_VALUE);
  gate.set_value();
  REQUIRE_OK(cuCtxSynchronize());
  CHECK(results<float>(1)[0] == 6);
  std::vector<uint32_t> texels(4);
  fill(board, texels, 4, 1, false);
  CHECK(texels[1] == 0x7f81407f);
  CHECK(run("edges", {&out, &texture, &x}) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE_METHOD(ContextFixture, "arrays are charged to the device until they are destroyed") {
  size_t before = 0, with = 0, after = 0, total = 0;
  REQUIRE_OK(cuMemGetInfo_v2(&before, &total));
  const CUarray array = make_array(1024, 1024, CU_AD_FORMAT_FLOAT, 4);
  REQUIRE_OK(cuMemGetInfo_v2(&with, &total));
  CHECK(before - with >= 16u << 20);
  CUdeviceptr whatever = 0;
  REQUIRE_OK(cuMemAlloc_v2(&whatever, 64));
  CHECK(cuMemcpyAtoD_v2(whatever, array, 16, 64) == CUDA_SUCCESS);
  CHECK(cuMemcpyAtoD_v2(whatever, array, 15, 64) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoA_v2(array, 1024 * 16, whatever, 64) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuMemFree_v2(whatever));
  REQUIRE_OK(cuArrayDestroy(array));
  REQUIRE_OK(cuMemGetInfo_v2(&after, &total));
  CHECK(after == before);
  CUarray huge = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR wanted{16384, 16384, 16384, CU_AD_FORMAT_FLOAT, 4, 0};
  CHECK(cuArray3DCreate_v2(&huge, &wanted) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE_METHOD(ContextFixture, "a texture gets the requested handle if it is free") {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = make_array(8, 8, CU_AD_FORMAT_FLOAT, 1);
  const CUDA_TEXTURE_DESC reading{};
  const auto make = [&] {
    CUtexObject made = 0;
    REQUIRE_OK(cuTexObjectCreate(&made, &resource, &reading, nullptr));
    return made;
  };
  const CUtexObject first = make();
  softgpu_wish_texture(first);
  const CUtexObject second = make();
  CHECK(second != first);
  REQUIRE_OK(cuTexObjectDestroy(first));
  CHECK(make() != first);
  softgpu_wish_texture(first);
  CHECK(make() == first);
  CUDA_RESOURCE_DESC found{};
  CHECK(cuTexObjectGetResourceDesc(&found, first) == CUDA_SUCCESS);
  // Values of another process, whose slots this one has not used yet.
  for (const unsigned long long other : {first + (3ull << 32) + 0xff00, first | 0xffff})
    CHECK((softgpu_wish_texture(other), make()) == other);
  for (const unsigned long long wild : {0ull, 1ull, ~0ull, first + (1ull << 32), first | 0x10000}) {
    softgpu_wish_texture(wild);
    CHECK(make() != wild);
  }
}
