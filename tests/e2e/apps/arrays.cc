// A program with arrays of every shape, and textures and surfaces of every kind, whose numbers it keeps in
// device memory. It finds all of them unchanged in every round.
#include <unistd.h>

#include <bit>
#include <memory>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

using Shape = CUDA_ARRAY3D_DESCRIPTOR;

constexpr unsigned kWidth = 64, kHeight = 32, kTexels = kWidth * kHeight;
constexpr unsigned kReadAsInteger = CU_TRSF_READ_AS_INTEGER, kNormalized = CU_TRSF_NORMALIZED_COORDINATES;

// Each kernel reads one texel of the texture whose number is at `place`.
constexpr const char* kLooks = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .entry look_line(.param .u64 place, .param .u64 out)
{
  .reg .b64 %rd<4>;
  .reg .b32 %r<6>;
  ld.param.u64 %rd1, [place];
  ld.param.u64 %rd2, [out];
  ld.global.u64 %rd3, [%rd1];
  mov.u32 %r5, 1;
  tex.1d.v4.u32.s32 {%r1, %r2, %r3, %r4}, [%rd3, {%r5}];
  st.global.u32 [%rd2], %r1;
  ret;
}
.visible .entry look_volume(.param .u64 place, .param .u64 out)
{
  .reg .b64 %rd<4>;
  .reg .b32 %r<6>;
  ld.param.u64 %rd1, [place];
  ld.param.u64 %rd2, [out];
  ld.global.u64 %rd3, [%rd1];
  mov.u32 %r5, 1;
  tex.3d.v4.u32.s32 {%r1, %r2, %r3, %r4}, [%rd3, {%r5, %r5, %r5, %r5}];
  st.global.u32 [%rd2], %r1;
  ret;
}
.visible .entry look_layers(.param .u64 place, .param .u64 out)
{
  .reg .b64 %rd<4>;
  .reg .b32 %r<6>;
  .reg .f32 %f<6>;
  ld.param.u64 %rd1, [place];
  ld.param.u64 %rd2, [out];
  ld.global.u64 %rd3, [%rd1];
  mov.u32 %r5, 1;
  tex.a2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd3, {%r5, %r5, %r5, %r5}];
  st.global.f32 [%rd2], %f1;
  ret;
}
.visible .entry look_level(.param .u64 place, .param .u64 out)
{
  .reg .b64 %rd<4>;
  .reg .f32 %f<7>;
  ld.param.u64 %rd1, [place];
  ld.param.u64 %rd2, [out];
  ld.global.u64 %rd3, [%rd1];
  mov.f32 %f5, 0f3DCCCCCD;
  mov.f32 %f6, 0f3F800000;
  tex.level.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd3, {%f5, %f5}], %f6;
  st.global.f32 [%rd2], %f1;
  ret;
}
)";

// Copies all of an array, whose texels are words.
void copy(CUarray array, const Shape& shape, std::vector<unsigned>& words, bool in) {
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
  c.dstMemoryType = in ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
  (in ? c.dstArray : c.srcArray) = array;
  if (in)
    c.srcHost = words.data();
  else
    c.dstHost = words.data();
  c.WidthInBytes = c.srcPitch = c.dstPitch = shape.Width * sizeof(unsigned);
  c.Height = c.srcHeight = c.dstHeight = shape.Height == 0 ? 1 : shape.Height;
  c.Depth = shape.Depth == 0 ? 1 : shape.Depth;
  OK(cuMemcpy3D(&c));
}

// An array, or a level of one, of known contents.
struct Filled {
  Filled(CUarray array, const Shape& shape, unsigned first)
      : array(array),
        shape(shape),
        words(shape.Width * (shape.Height == 0 ? 1 : shape.Height) * (shape.Depth == 0 ? 1 : shape.Depth)) {
    for (size_t i = 0; i < words.size(); ++i) words[i] = value(first + static_cast<unsigned>(i));
    copy(array, shape, words, true);
  }
  static Filled create(const Shape& shape, unsigned first) {
    CUarray made = nullptr;
    OK(cuArray3DCreate(&made, &shape));
    return {made, shape, first};
  }
  unsigned value(unsigned number) const {
    return shape.Format == CU_AD_FORMAT_FLOAT ? std::bit_cast<unsigned>(static_cast<float>(number)) : number;
  }
  size_t index(size_t x, size_t y, size_t z) const { return (z * shape.Height + y) * shape.Width + x; }
  void check() const {
    std::vector<unsigned> seen(words.size());
    copy(array, shape, seen, false);
    EXPECT(seen == words);
    Shape found{};
    OK(cuArray3DGetDescriptor(&found, array));
    EXPECT(found.Width == shape.Width && found.Height == shape.Height && found.Depth == shape.Depth);
    EXPECT(found.Format == shape.Format && found.NumChannels == 1 && found.Flags == shape.Flags);
  }
  CUarray array;
  Shape shape;
  std::vector<unsigned> words;
};

CUDA_RESOURCE_DESC on(CUarray array) {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  return resource;
}

CUtexObject texture_of(const CUDA_RESOURCE_DESC& resource, unsigned flags) {
  CUDA_TEXTURE_DESC reading{};
  reading.flags = flags;
  reading.maxMipmapLevelClamp = 10;
  CUtexObject texture = 0;
  OK(cuTexObjectCreate(&texture, &resource, &reading, nullptr));
  return texture;
}

// A texture whose number is in device memory, and a kernel that finds it there.
struct Stored {
  Stored(CUtexObject texture, CUmodule looks, const char* kernel) : texture(texture) {
    OK(cuModuleGetFunction(&look, looks, kernel));
    OK(cuMemAlloc(&place, 2 * sizeof texture));
    OK(cuMemcpyHtoD(place, &texture, sizeof texture));
  }
  unsigned read() const {
    CUdeviceptr out = place + sizeof texture;
    void* parameters[] = {const_cast<CUdeviceptr*>(&place), &out};
    OK(cuLaunchKernel(look, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    return download<unsigned>(out, 1)[0];
  }
  const CUtexObject texture;
  CUfunction look = nullptr;
  CUdeviceptr place = 0;
};

// A mipmapped array, with handles of some of its levels.
struct Levels {
  explicit Levels(CUmodule looks) {
    OK(cuMipmappedArrayCreate(&whole, &shape, 3));
    for (unsigned level = 0; level < 3; ++level) {
      CUarray array = nullptr;
      OK(cuMipmappedArrayGetLevel(&array, whole, level));
      levels.emplace_back(array, Shape{kWidth >> level, kHeight >> level, 0, CU_AD_FORMAT_FLOAT, 1, 0},
                          1000 * level);
    }
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    resource.res.mipmap.hMipmappedArray = whole;
    stored = std::make_unique<Stored>(texture_of(resource, kNormalized), looks, "look_level");
  }
  void check() const {
    for (const Filled& level : levels) level.check();
    EXPECT(stored->read() == levels[1].words[levels[1].index(3, 1, 0)]);  // at (0.1, 0.1)
  }
  static constexpr Shape shape{kWidth, kHeight, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUmipmappedArray whole = nullptr;
  std::vector<Filled> levels;
  std::unique_ptr<Stored> stored;
};

// Textures on memory with and without rows.
struct OnMemory {
  explicit OnMemory(CUmodule looks) {
    size_t size = 0;
    OK(cuMemAllocPitch(&rows, &pitch, kWidth * sizeof(unsigned), kHeight, 16));
    OK(cuMemAlloc(&line, size = kTexels * sizeof(unsigned)));
    OK(cuMemsetD2D32(rows, pitch, 7, kWidth, kHeight));
    OK(cuMemsetD32(line, 9, kTexels));
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_PITCH2D;
    resource.res.pitch2D = {rows, CU_AD_FORMAT_UNSIGNED_INT32, 1, kWidth, kHeight, pitch};
    on_rows = texture_of(resource, kReadAsInteger);
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear = {line, CU_AD_FORMAT_UNSIGNED_INT32, 1, size};
    stored = std::make_unique<Stored>(texture_of(resource, kReadAsInteger), looks, "look_line");
  }
  CUdeviceptr rows = 0, line = 0;
  size_t pitch = 0;
  CUtexObject on_rows = 0;
  std::unique_ptr<Stored> stored;
};

// An array and its texture, which are made anew in each round. Every other array is destroyed before its
// texture.
struct Temporary {
  void replace(unsigned round) {
    if (texture != 0) OK(cuTexObjectDestroy(texture));
    if (array) OK(cuArrayDestroy(array));
    array = Filled::create({kWidth + round % 7, 3, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0}, round).array;
    texture = texture_of(on(array), kReadAsInteger);
    if (round % 2 == 0) return;
    OK(cuArrayDestroy(array));
    array = nullptr;
  }
  CUarray array = nullptr;
  CUtexObject texture = 0;
};

struct AllArrays {
  AllArrays() {
    OK(cuSurfObjectCreate(&surface, &drawn_on));
    OK(cuMemAlloc(&out, kTexels * sizeof(unsigned)));
  }
  void check_texture(CUtexObject texture, unsigned first, unsigned step) const {
    OK(kernels.launch("read_texture", kTexels / 256, 256, nullptr, texture, out, kWidth, kTexels));
    const auto seen = download<unsigned>(out, kTexels);
    for (unsigned i = 0; i < kTexels; ++i) EXPECT(seen[i] == first + step * i);
  }
  void run(unsigned round) {
    OK(kernels.launch("add_to_surface", kTexels / 256, 256, nullptr, surface, 3u, kWidth, kTexels));
    OK(kernels.launch("add", kTexels / 256, 256, nullptr, memory.line, 5u, kTexels));
    temporary.replace(round);
    check_texture(picture, 3 * round, 1);
    check_texture(memory.on_rows, 7, 0);
    EXPECT(memory.stored->read() == 9 + 5 * round);
    for (const Filled* const array : {&line, &volume, &layers, &cube, &large}) array->check();
    EXPECT(look_volume.read() == volume.words[volume.index(1, 1, 1)]);
    EXPECT(look_layers.read() == layers.words[layers.index(1, 1, 1)]);
    levels.check();
    CUDA_RESOURCE_DESC resource{};
    OK(cuTexObjectGetResourceDesc(&resource, picture));
    EXPECT(resource.res.array.hArray == board.array);
  }

  const Device device;
  const Kernels kernels;
  CUmodule looks = [] {
    CUmodule loaded = nullptr;
    OK(cuModuleLoadData(&loaded, kLooks));
    return loaded;
  }();
  const Filled board = Filled::create(
                   {kWidth, kHeight, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SURFACE_LDST}, 0),
               line = Filled::create({500, 0, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0}, 10),
               volume = Filled::create({16, 12, 10, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0}, 20),
               layers = Filled::create({32, 16, 5, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED}, 30),
               cube = Filled::create({16, 16, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP}, 40),
               large = Filled::create({1024, 1024, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0}, 50);
  const CUDA_RESOURCE_DESC drawn_on = on(board.array);
  const CUtexObject picture = texture_of(drawn_on, kReadAsInteger);
  const Stored look_volume{texture_of(on(volume.array), kReadAsInteger), looks, "look_volume"},
      look_layers{texture_of(on(layers.array), 0), looks, "look_layers"};
  const Levels levels{looks};
  const OnMemory memory{looks};
  CUsurfObject surface = 0;
  CUdeviceptr out = 0;
  Temporary temporary;
};

}  // namespace

// arrays_until FILE: goes on until the file exists.
SCENARIO(arrays_until) {
  AllArrays all;
  std::printf("working\n");
  std::fflush(stdout);
  unsigned rounds = 0;
  while (::access(arguments.at(0).c_str(), F_OK) != 0) all.run(++rounds);
  std::printf("nothing is lost after %u rounds\n", rounds);
}
