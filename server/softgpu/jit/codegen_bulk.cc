// Bulk copies and reductions between global and shared memory and within a cluster, with and without tensor
// maps, and the instructions on tensor maps. Copies complete at once, so waiting for them never waits.
#include "server/softgpu/jit/codegen_bulk.h"

#include "server/softgpu/jit/codegen_cluster.h"
#include "server/softgpu/jit/codegen_mbarrier.h"
#include "server/softgpu/jit/codegen_memory.h"
#include "server/softgpu/jit/instructions.h"
#include "server/softgpu/jit/tensor.h"

namespace gpupool::softgpu::codegen {
namespace {

void cp_bulk_tensor(Emitter& e, Decoded& i, bool reduces);

bool is_shared(std::string_view space) {
  return space == "shared::cluster" || space == "shared::cta";
}

ReducedType reduced_type(Decoded& i, Type type, Reduction reduction) {
  const bool bits = reduction >= Reduction::conjunction;
  switch (type) {
    case Type::b32:
      if (bits) return ReducedType::u32;
      break;
    case Type::b64:
      if (bits) return ReducedType::u64;
      break;
    case Type::u32:
      if (!bits) return ReducedType::u32;
      break;
    case Type::s32:
      if (reduction <= Reduction::maximum) return ReducedType::s32;
      break;
    case Type::u64:
      if (!bits) return ReducedType::u64;
      break;
    case Type::s64:
      if (reduction <= Reduction::maximum) return ReducedType::s64;
      break;
    case Type::f16:
      if (reduction <= Reduction::maximum) return ReducedType::f16;
      break;
    case Type::bf16:
      if (reduction <= Reduction::maximum) return ReducedType::bf16;
      break;
    case Type::f32:
      if (reduction == Reduction::add) return ReducedType::f32;
      break;
    case Type::f64:
      if (reduction == Reduction::add) return ReducedType::f64;
      break;
    default: break;
  }
  i.fail("this reduction does not exist for this type");
}

Reduction take_reduction(Decoded& i) {
  const std::string_view name = i.take_one({"add", "min", "max", "inc", "dec", "and", "or", "xor"});
  if (auto reduction = find_reduction(name)) return *reduction;
  i.fail("the operation is missing");
}

// Returns the generic address of an operand of a bulk copy. In shared memory, all bytes must lie in one
// window.
llvm::Value* bulk_address(Emitter& e, Decoded& i, size_t operand, std::string_view space,
                          llvm::Value* bytes) {
  if (space == "global") return resolve(e, i, i.operand(operand), Space::global).value;
  llvm::Value* address = resolve(e, i, i.operand(operand), Space::shared).value;
  return cluster_to_generic(e, address, bytes);
}

}  // namespace

void cp_bulk(Emitter& e, Decoded& i, bool reduces) {
  if (i.take_any({"commit_group", "wait_group"})) {
    i.take("read");
    return i.done();
  }
  if (i.take("prefetch")) {
    if (i.take("tensor")) {
      i.take_one({"1d", "2d", "3d", "4d", "5d"});
      i.take_any({"tile", "tile::gather4"});
    }
    i.take_any({"L2", "global", "L2::cache_hint"});
    return i.done();
  }
  if (i.take("tensor")) return cp_bulk_tensor(e, i, reduces);
  std::string_view target = i.take_next(), source = i.take_next();
  bool signals = i.take("mbarrier::complete_tx::bytes"), multicast = i.take("multicast::cluster");
  const bool masked = i.take("cp_mask");
  i.take_any({"bulk_group", "L2::cache_hint", "noftz"});
  Reduction reduction = Reduction::copy;
  ReducedType type = ReducedType::u32;
  if (reduces) {
    reduction = take_reduction(i);
    type = reduced_type(i, i.type(), reduction);
  }
  i.done();
  const bool to_shared = is_shared(target), from_shared = source == "shared::cta";
  if (!(to_shared && (source == "global" || from_shared)) && !(target == "global" && from_shared))
    i.fail("only copies between global and shared memory are supported");
  if (multicast && (!signals || source != "global"))
    i.fail("multicast requires a copy from global memory with an mbarrier");
  if (reduces && !from_shared) i.fail("the source of a reduction must be .shared::cta");
  if (masked && (signals || reduces)) i.fail(".cp_mask is supported only for copies to global memory");
  llvm::Type* word = e.builder.getInt64Ty();
  llvm::Value* bytes = e.read(i, 2, Type::u32);
  llvm::Value* wide = e.builder.CreateZExt(bytes, word);
  llvm::Value* from = bulk_address(e, i, 1, source, bytes);
  if (multicast) {
    llvm::Value* to = resolve(e, i, i.operand(0), Space::shared).value;
    llvm::Value* barrier = resolve(e, i, i.operand(3), Space::shared).value;
    e.call_runtime("softgpu_bulk_multicast", e.builder.getVoidTy(),
                   {e.thread, to, from, wide, barrier, e.read(i, 4, Type::u16)});
    return;
  }
  llvm::Value* to = bulk_address(e, i, 0, target, bytes);
  llvm::Value* barrier = signals ? mbarrier_pointer(e, i, 3, Space::shared_cluster) : nullptr;
  if (reduces)
    e.call_runtime("softgpu_bulk_reduce", e.builder.getVoidTy(),
                   {e.thread, to, from, wide, e.i32(static_cast<uint32_t>(reduction)),
                    e.i32(static_cast<uint32_t>(type))});
  else if (masked)
    e.call_runtime("softgpu_bulk_copy_masked", e.builder.getVoidTy(),
                   {e.thread, to, from, wide, e.read(i, i.operand_count() - 1, Type::u16)});
  else
    e.call_runtime("softgpu_bulk_copy", e.builder.getVoidTy(), {e.thread, to, from, wide});
  if (barrier) e.call_runtime("softgpu_mbarrier_transfer", word, {barrier, e.builder.CreateNeg(wide)});
}

namespace {

// [map, {x, y, ...}]: sets `map` to the map's address and returns an array of the coordinates.
llvm::Value* tensor_coordinates(Emitter& e, Decoded& i, const Operand& tensor, uint32_t count,
                                llvm::Value*& map) {
  if (tensor.kind != Operand::Kind::fetch || tensor.count != 2)
    i.fail("expected a tensor map and coordinates");
  const auto parts = i.elements(tensor);
  map = e.read(parts[0], Type::u64);
  std::span<const Operand> coordinates(&parts[1], 1);
  if (parts[1].kind == Operand::Kind::vector) coordinates = i.elements(parts[1]);
  if (coordinates.size() != count) i.fail("the number of coordinates is wrong");
  auto* type = llvm::ArrayType::get(e.builder.getInt32Ty(), kMaxTensorRank);
  llvm::Value* array = e.temporary(type);
  for (uint32_t n = 0; n < count; ++n)
    e.builder.CreateStore(e.read(coordinates[n], Type::s32), e.builder.CreateConstGEP2_32(type, array, 0, n));
  return array;
}

void cp_bulk_tensor(Emitter& e, Decoded& i, bool reduces) {
  const std::string_view dimension = i.take_one({"1d", "2d", "3d", "4d", "5d"});
  if (dimension.empty()) i.fail("the dimension is missing");
  const auto rank = static_cast<uint32_t>(dimension[0] - '0');
  const std::string_view target = i.take_next(), source = i.take_next();
  i.take("tile");
  const bool four = i.take_any({"tile::gather4", "tile::scatter4"});
  const bool signals = i.take("mbarrier::complete_tx::bytes"), multicast = i.take("multicast::cluster");
  i.take_any({"bulk_group", "L2::cache_hint", "cta_group::1"});
  const Reduction reduction = reduces ? take_reduction(i) : Reduction::copy;
  i.done();
  if (four && rank != 2) i.fail("gather4 and scatter4 require .2d");
  const uint32_t coordinates = four ? 5 : rank;
  llvm::Value* rows = e.i32(static_cast<uint32_t>(four ? TensorRows::four : TensorRows::box));
  llvm::Value* map = nullptr;
  if (is_shared(target) && source == "global") {
    if (!signals || reduces) i.fail("expected .mbarrier::complete_tx::bytes");
    llvm::Value* array = tensor_coordinates(e, i, i.operand(1), coordinates, map);
    llvm::Value* to = resolve(e, i, i.operand(0), Space::shared).value;
    llvm::Value* barrier = resolve(e, i, i.operand(2), Space::shared).value;
    llvm::Value* ranks =
        multicast ? e.builder.CreateZExt(e.read(i, 3, Type::u16), e.builder.getInt32Ty()) : e.i32(0);
    e.call_runtime("softgpu_tensor_load", e.builder.getVoidTy(),
                   {e.thread, map, array, e.i32(rank), rows, to, barrier, ranks});
    return;
  }
  if (target != "global" || source != "shared::cta")
    i.fail("only copies between global and shared memory are supported");
  if (signals || multicast) i.fail("copies to global memory complete through bulk groups, not an mbarrier");
  llvm::Value* array = tensor_coordinates(e, i, i.operand(0), coordinates, map);
  llvm::Value* from = resolve(e, i, i.operand(1), Space::shared).value;
  e.call_runtime("softgpu_tensor_store", e.builder.getVoidTy(),
                 {e.thread, map, array, e.i32(rank), rows, from, e.i32(static_cast<uint32_t>(reduction))});
}

}  // namespace

// st.bulk stores zeros.
void st_bulk(Emitter& e, Decoded& i) {
  i.take("weak");
  if (!i.take_any({"shared::cta", "shared"})) i.fail("expected .shared::cta");
  i.done(3);
  const Operand& value = i.operand(2);
  if (value.kind != Operand::Kind::integer || value.value != 0) i.fail("st.bulk requires the value 0");
  llvm::Value* bytes = e.read(i, 1, Type::u64);
  constexpr uint64_t kMaxBytes = (1u << kClusterAddressBits) - 1;  // no window is larger
  llvm::Value* checked = e.builder.CreateTrunc(e.intrinsic(llvm::Intrinsic::umin, {bytes, e.i64(kMaxBytes)}),
                                               e.builder.getInt32Ty());
  llvm::Value* to = bulk_address(e, i, 0, "shared::cta", checked);
  e.builder.CreateMemSet(pointer_to(e, to), e.builder.getInt8(0), bytes, llvm::MaybeAlign(1));
}

void tensormap(Emitter& e, Decoded& i) {
  if (i.take("cp_fenceproxy")) {  // every lane copies the same bytes
    i.take_any({"global", "shared::cta", "tensormap::generic", "release", "cta", "cluster", "gpu", "sys",
                "sync", "aligned"});
    i.done(3);
    const Operand& size = i.operand(2);
    if (size.kind != Operand::Kind::integer || size.value != kTensorMapBytes)
      i.fail("a tensor map has 128 bytes");
    llvm::Value* from = bulk_address(e, i, 1, "shared::cta", e.i32(kTensorMapBytes));
    e.call_runtime("softgpu_bulk_copy", e.builder.getVoidTy(),
                   {e.thread, bulk_address(e, i, 0, "global", nullptr), from, e.i64(kTensorMapBytes)});
    return;
  }
  if (!i.take("replace") || !i.take("tile")) i.fail("expected .replace.tile or .cp_fenceproxy");
  const auto field = find_tensor_field(i.take_next());
  if (!field) i.fail("unknown field");
  const bool in_shared = i.take("shared::cta");
  i.take("global");
  if (!i.take("b1024")) i.fail("expected .b1024");
  const Type type = i.type();
  const bool numbered = *field == TensorField::box_dim || *field == TensorField::global_dim ||
                        *field == TensorField::global_stride || *field == TensorField::element_stride;
  i.done(numbered ? 3 : 2);
  uint64_t ordinal = 0;
  if (numbered) {
    const Operand& number = i.operand(1);
    if (number.kind != Operand::Kind::integer || number.value < 0 || number.value >= kMaxTensorRank)
      i.fail("expected the number of a dimension");
    ordinal = static_cast<uint64_t>(number.value);
  }
  llvm::Value* value = e.convert_bits(e.read(i, numbered ? 2 : 1, type), e.builder.getInt64Ty(), false);
  llvm::Value* map = in_shared ? bulk_address(e, i, 0, "shared::cta", e.i32(kTensorMapBytes))
                               : resolve(e, i, i.operand(0), Space::generic).value;
  e.call_runtime(
      "softgpu_tensormap_replace", e.builder.getVoidTy(),
      {e.thread, map, e.i32(static_cast<uint32_t>(*field)), e.i32(static_cast<uint32_t>(ordinal)), value});
}

}  // namespace gpupool::softgpu::codegen
