// Textures and surfaces: calls of the functions of exec/texture.h, with the operands in an array.
#include <algorithm>

#include "server/softgpu/exec/texture.h"
#include "server/softgpu/jit/codegen_compare.h"
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {

namespace flag = texture_flags;
namespace input = texture_operand;

namespace {

// A fetch or a store of a texture or surface, while its call is put together.
struct Fetch {
  llvm::Value* texture = nullptr;
  llvm::AllocaInst* in = nullptr;
  uint32_t flags = 0;
  uint32_t dimensions = 1;
};

struct Geometry {
  std::string_view name;
  uint32_t flags;
  uint32_t dimensions;  // number of coordinates without the layer
};
constexpr Geometry kGeometries[] = {
    {"1d", flag::k1d, 1},
    {"2d", flag::k2d, 2},
    {"3d", flag::k3d, 3},
    {"a1d", flag::k1d | flag::kLayered, 1},
    {"a2d", flag::k2d | flag::kLayered, 2},
    {"cube", flag::kCube, 3},
    {"acube", flag::kCube | flag::kLayered, 3},
};
constexpr const char* kQueries[] = {
    "width",
    "height",
    "depth",
    "channel_data_type",
    "channel_order",
    "normalized_coords",
    "force_unnormalized_coords",
    "filter_mode",
    "addr_mode_0",
    "addr_mode_1",
    "addr_mode_2",
    "array_size",
    "num_mipmap_levels",
    "num_samples",
    "memory_layout",
};

std::string_view take_geometry(Decoded& i) {
  const auto name = i.take_one({"1d", "2d", "3d", "a1d", "a2d", "cube", "acube"});
  if (name.empty()) i.fail("textures of this geometry are not supported");
  return name;
}

// A reference is passed by address, an object by value.
llvm::Value* texture_value(Emitter& e, const Operand& operand) {
  if (operand.kind == Operand::Kind::reg || operand.kind == Operand::Kind::integer)
    return e.read(operand, Type::u64);
  if (operand.kind == Operand::Kind::symbol || operand.kind == Operand::Kind::variable)
    return e.symbol_address(operand);
  throw CodegenFailure{"expected a texture or surface"};
}

void store_input(Emitter& e, const Fetch& fetch, uint32_t at, const Operand& operand, Type type) {
  llvm::Value* value = e.convert_bits(e.read(operand, type), e.builder.getInt32Ty(), false);
  e.builder.CreateStore(value, e.builder.CreateConstGEP1_64(e.builder.getInt32Ty(), fetch.in, at));
}

// Stores as many numbers as the texture has dimensions; the vector may be longer.
void store_inputs(Emitter& e, Decoded& i, const Fetch& fetch, uint32_t at, const Operand& operand,
                  Type type) {
  if (operand.kind != Operand::Kind::vector) {
    if (fetch.dimensions != 1) i.fail("expected a vector");
    return store_input(e, fetch, at, operand, type);
  }
  const auto elements = i.elements(operand);
  if (elements.size() < fetch.dimensions) i.fail("the vector is too short");
  for (uint32_t n = 0; n < fetch.dimensions; ++n) store_input(e, fetch, at + n, elements[n], type);
}

Fetch take_fetch(Emitter& e, Decoded& i, size_t operand, std::string_view geometry, Type coordinates) {
  const Operand& place = i.operand(operand);
  if (place.kind != Operand::Kind::fetch) i.fail("expected a texture and coordinates");
  const auto parts = i.elements(place);
  if (parts.size() != 2) i.fail("independent samplers are not supported");
  Fetch fetch;
  for (const Geometry& known : kGeometries) {
    if (known.name != geometry) continue;
    fetch.flags = known.flags;
    fetch.dimensions = known.dimensions;
  }
  fetch.texture = texture_value(e, parts[0]);
  fetch.in = e.temporary(llvm::ArrayType::get(e.builder.getInt32Ty(), input::kCount));
  e.builder.CreateStore(llvm::Constant::getNullValue(fetch.in->getAllocatedType()), fetch.in);
  std::span<const Operand> elements(&parts[1], 1);
  if (parts[1].kind == Operand::Kind::vector) elements = i.elements(parts[1]);
  const bool layered = (fetch.flags & flag::kLayered) != 0;
  if (elements.size() < fetch.dimensions + layered) i.fail("too few coordinates");
  if (layered) {
    store_input(e, fetch, input::kLayer, elements[0], Type::u32);
    elements = elements.subspan(1);
  }
  for (uint32_t n = 0; n < fetch.dimensions; ++n)
    store_input(e, fetch, input::kX + n, elements[n], coordinates);
  return fetch;
}

// Stores the operands after the coordinates (offsets, a depth to compare with), calls the fetch, and writes
// the results.
void finish_fetch(Emitter& e, Decoded& i, Fetch& fetch, size_t next, Type result) {
  for (; next < i.operand_count(); ++next) {
    const Operand& operand = i.operand(next);
    if (operand.kind == Operand::Kind::vector || fetch.dimensions == 1) {
      store_inputs(e, i, fetch, input::kOffsets, operand, Type::s32);
      fetch.flags |= flag::kOffset;
    } else {
      store_input(e, fetch, input::kReference, operand, Type::f32);
      fetch.flags |= flag::kCompare;
    }
  }
  const bool half = ptx::is_half(result);
  if (half) fetch.flags |= flag::kHalf;
  const auto [target, resident] = e.split_pair(i, i.operand(0));
  std::span<const Operand> targets(target, 1);
  if (target->kind == Operand::Kind::vector) targets = i.elements(*target);
  if (targets.size() > (half ? 2 : 4)) i.fail("the vector's width is wrong");
  llvm::AllocaInst* out = e.temporary(llvm::ArrayType::get(e.builder.getInt32Ty(), 4));
  e.call_runtime("softgpu_texture_fetch", e.builder.getVoidTy(),
                 {e.thread, fetch.texture, e.i32(fetch.flags), fetch.in, out});
  for (uint32_t n = 0; n < targets.size(); ++n) {
    llvm::Value* value = e.builder.CreateLoad(e.builder.getInt32Ty(),
                                              e.builder.CreateConstGEP1_64(e.builder.getInt32Ty(), out, n));
    e.write(targets[n], e.convert_bits(value, e.module.ir_type(result), false), result);
  }
  if (resident) e.write(*resident, e.builder.getInt1(true), Type::pred);
}

}  // namespace

void tex(Emitter& e, Decoded& i) {
  const bool base = i.take("base"), level = i.take("level"), gradient = i.take("grad");
  const std::string_view geometry = take_geometry(i);
  if (!i.take("v4") && !i.take("v2")) i.fail("expected .v4 or .v2");
  const Type result = i.type(), coordinates = i.type();
  i.done();
  if (ptx::bits_of(result) != 32) i.fail("results of this type are not supported");
  if (coordinates != Type::f32 && coordinates != Type::s32) i.fail("coordinates must be .f32 or .s32");
  if (base + level + gradient > 1) i.fail("expected at most one of .base, .level and .grad");
  Fetch fetch = take_fetch(e, i, 1, geometry, coordinates);
  if (coordinates == Type::s32) fetch.flags |= flag::kIntegers;
  size_t next = 2;
  if (level) {
    fetch.flags |= flag::kLevel;
    store_input(e, fetch, input::kLod, i.operand(next++), coordinates);
  } else if (gradient) {
    fetch.flags |= flag::kGradient;
    store_inputs(e, i, fetch, input::kDx, i.operand(next++), Type::f32);
    store_inputs(e, i, fetch, input::kDy, i.operand(next++), Type::f32);
  }
  finish_fetch(e, i, fetch, next, result);
}

void tld4(Emitter& e, Decoded& i) {
  const std::string_view component = i.take_one({"r", "g", "b", "a"});
  const std::string_view geometry = i.take_one({"2d", "a2d", "cube", "acube"});
  if (component.empty() || geometry.empty()) i.fail("expected a component and a geometry");
  i.take("v4");
  const Type result = i.type(), coordinates = i.type();
  i.done();
  if (ptx::bits_of(result) != 32 || ptx::is_half(result) || coordinates != Type::f32)
    i.fail("these types are not supported");
  Fetch fetch = take_fetch(e, i, 1, geometry, coordinates);
  fetch.flags |= flag::kGather | static_cast<uint32_t>(std::string_view("rgba").find(component))
                                     << flag::kComponentShift;
  finish_fetch(e, i, fetch, 2, result);
}

// txq and suq.
void texture_query(Emitter& e, Decoded& i) {
  const bool level = i.take("level");
  uint32_t query = 0;
  while (query < std::size(kQueries) && !i.take(kQueries[query])) ++query;
  if (query == std::size(kQueries)) i.fail("this query is not supported");
  const Type type = i.type();
  i.done(level ? 3 : 2);
  const Operand& place = i.operand(1);
  if (place.kind != Operand::Kind::address) i.fail("expected a texture or surface");
  llvm::Value* lod = level ? e.read(i, 2, Type::u32) : e.i32(0);
  llvm::Value* answer = e.call_runtime(
      "softgpu_texture_query", e.builder.getInt32Ty(),
      {e.thread, texture_value(e, e.source.base(place)), e.i32(query), lod, e.i32(i.opcode() == "suq")});
  e.write(i.operand(0), e.convert_bits(answer, e.module.ir_type(type), false), type);
}

namespace {

uint32_t take_outside(Emitter&, Decoded& i) {
  const std::string_view word = i.take_one({"trap", "clamp", "zero"});
  return word == "clamp" ? flag::kClamp : word == "zero" ? flag::kZero : flag::kTrap;
}

}  // namespace

void suld(Emitter& e, Decoded& i) {
  if (!i.take("b")) i.fail("only suld.b is supported");
  const std::string_view geometry = take_geometry(i);
  i.take_cache_hints();
  const uint32_t width = i.take("v2") ? 2 : i.take("v4") ? 4 : 1;
  const uint32_t outside = take_outside(e, i);
  const Type type = i.type();
  i.done(2);
  const uint32_t bytes = ptx::bytes_of(type);
  if (!ptx::is_untyped(type) || bytes * width > 16) i.fail("accesses of this width are not supported");
  Fetch fetch = take_fetch(e, i, 1, geometry, Type::s32);
  std::span<const Operand> targets(&i.operand(0), 1);
  if (i.operand(0).kind == Operand::Kind::vector) targets = i.elements(i.operand(0));
  if (targets.size() != width) i.fail("the vector's width is wrong");
  llvm::AllocaInst* out = e.temporary(llvm::ArrayType::get(e.builder.getInt64Ty(), 2));
  e.call_runtime("softgpu_surface_load", e.builder.getVoidTy(),
                 {e.thread, fetch.texture, e.i32(fetch.flags | outside | bytes * width << flag::kBytesShift),
                  fetch.in, out});
  for (uint32_t n = 0; n < width; ++n)
    e.write(
        targets[n],
        e.builder.CreateAlignedLoad(
            e.module.ir_type(type),
            e.builder.CreateConstGEP1_64(e.builder.getInt8Ty(), out, uint64_t{n} * bytes), llvm::Align(1)),
        type);
}

void sust(Emitter& e, Decoded& i) {
  const bool plain = i.take("b"), formatted = i.take("p");
  if (plain == formatted) i.fail("expected .b or .p");
  const std::string_view geometry = take_geometry(i);
  i.take_cache_hints();
  const uint32_t width = i.take("v2") ? 2 : i.take("v4") ? 4 : 1;
  const uint32_t outside = take_outside(e, i);
  const Type type = i.type();
  i.done(2);
  const uint32_t bytes = ptx::bytes_of(type);
  if (bytes * width > 16 || (formatted && bytes != 4)) i.fail("accesses of this width are not supported");
  Fetch fetch = take_fetch(e, i, 0, geometry, Type::s32);
  std::span<const Operand> sources(&i.operand(1), 1);
  if (i.operand(1).kind == Operand::Kind::vector) sources = i.elements(i.operand(1));
  if (sources.size() != width) i.fail("the vector's width is wrong");
  llvm::AllocaInst* value = e.temporary(llvm::ArrayType::get(e.builder.getInt64Ty(), 2));
  for (uint32_t n = 0; n < width; ++n)
    e.builder.CreateAlignedStore(
        e.convert_bits(e.read(sources[n], type), e.module.int_type(bytes * 8), false),
        e.builder.CreateConstGEP1_64(e.builder.getInt8Ty(), value, uint64_t{n} * bytes), llvm::Align(1));
  const uint32_t flags =
      fetch.flags | outside | bytes * width << flag::kBytesShift | (formatted ? flag::kFormatted : 0);
  e.call_runtime("softgpu_surface_store", e.builder.getVoidTy(),
                 {e.thread, fetch.texture, e.i32(flags), fetch.in, value});
}

void sured(Emitter& e, Decoded& i) {
  const bool plain = i.take("b"), formatted = i.take("p");
  if (plain == formatted) i.fail("expected .b or .p");
  constexpr std::string_view kOperations[] = {"add", "min", "max", "and", "or"};
  const std::string_view name = i.take_one({"add", "min", "max", "and", "or"});
  if (name.empty()) i.fail("the operation is missing");
  const auto operation = static_cast<uint32_t>(
      std::find(std::begin(kOperations), std::end(kOperations), name) - std::begin(kOperations));
  const std::string_view geometry = take_geometry(i);
  const uint32_t outside = take_outside(e, i);
  const Type type = i.type();
  i.done(2);
  const uint32_t bytes = ptx::bytes_of(type);
  if ((bytes != 4 && bytes != 8) || ptx::is_float(type)) i.fail("reductions of this type are not supported");
  const Fetch fetch = take_fetch(e, i, 0, geometry, Type::s32);
  const Operand* source = &i.operand(1);
  if (source->kind == Operand::Kind::vector) {
    if (source->count != 1) i.fail("expected one value");
    source = &i.elements(*source)[0];
  }
  llvm::Value* value = e.convert_bits(e.read(*source, type), e.builder.getInt64Ty(), false);
  const uint32_t flags = fetch.flags | outside | bytes << flag::kBytesShift |
                         operation << flag::kOperationShift | (ptx::is_signed(type) ? flag::kSigned : 0) |
                         (formatted ? flag::kFormatted : 0);
  e.call_runtime("softgpu_surface_reduce", e.builder.getVoidTy(),
                 {e.thread, fetch.texture, e.i32(flags), fetch.in, value});
}

void istypep(Emitter& e, Decoded& i) {
  const std::string_view kind = i.take_one({"texref", "surfref", "samplerref"});
  if (kind.empty() || kind == "samplerref") i.fail("expected .texref or .surfref");
  i.done(2);
  llvm::Value* yes = e.call_runtime("softgpu_is_texture", e.builder.getInt32Ty(),
                                    {e.thread, texture_value(e, i.operand(1)), e.i32(kind == "surfref")});
  e.write(i.operand(0), e.builder.CreateICmpNE(yes, e.i32(0)), Type::pred);
}

}  // namespace gpupool::softgpu::codegen
