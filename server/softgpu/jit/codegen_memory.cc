// Addresses and their checks, loads and stores.
#include "server/softgpu/jit/codegen_memory.h"

#include <llvm/IR/MDBuilder.h>

#include <bit>
#include <numeric>

#include "server/softgpu/jit/codegen_bulk.h"
#include "server/softgpu/jit/codegen_cluster.h"
#include "server/softgpu/jit/codegen_mbarrier.h"
#include "server/softgpu/jit/instructions.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu::codegen {
namespace {

llvm::Value* base_offset(Emitter& e, uint32_t reg);

llvm::MDNode* unlikely(llvm::LLVMContext& context) {
  return llvm::MDBuilder(context).createBranchWeights(100000, 1);
}

}  // namespace

llvm::Value* pointer_to(Emitter& e, llvm::Value* address) {
  return e.builder.CreateIntToPtr(address, llvm::PointerType::get(e.module.context, 0));
}

llvm::Value* shared_base(Emitter& e) {
  return e.block_field(offsetof(BlockContext, shared_base), e.builder.getInt64Ty());
}

Space take_space(Emitter&, Decoded& i) {
  if (i.take("shared::cluster")) return Space::shared_cluster;
  std::string_view word = i.take_one(
      {"global", "shared", "shared::cta", "local", "const", "param", "param::entry", "param::func"});
  return word.empty() ? Space::generic : *ptx::find_space(word);
}

// --- Addresses ---

Address resolve(Emitter& e, Decoded& i, const Operand& operand, Space space) {
  if (operand.kind != Operand::Kind::address && !operand.is_element)
    i.fail("expected an address in brackets");
  if (space == Space::shared_cluster) {
    Address own = resolve(e, i, operand, Space::shared);
    if (own.kind != Address::Kind::shared || llvm::isa<llvm::ConstantInt>(own.value)) return own;
    Address generic;
    generic.value = cluster_to_generic(e, own.value, e.i32(1));
    return generic;
  }
  const Operand& base = operand.is_element ? operand : e.source.base(operand);
  Address address;
  auto offset = static_cast<uint64_t>(operand.value);
  auto shared = [&](llvm::Value* value) {
    address.kind = Address::Kind::shared;
    address.value = value;
    return address;
  };
  auto linked = [&](Symbol symbol) {
    if (symbol.kind == Symbol::Kind::shared)
      return shared(e.i64(e.module.shared_offset(symbol.index) + offset));
    if (symbol.kind == Symbol::Kind::data) {
      address.value = e.builder.CreateAdd(e.linked_address(symbol, base.name), e.i64(offset));
      uint64_t size = e.module.image.data[symbol.index].tree->size;
      address.safe_bytes = offset < size ? size - offset : 0;
      address.safe_alignment =
          std::gcd(uint64_t{e.module.image.data[symbol.index].tree->alignment}, offset | 1ull << 12);
      return address;
    }
    if (symbol.kind == Symbol::Kind::undefined) e.linked_address(symbol, base.name);  // throws
    i.fail("functions cannot be read or written");
  };
  switch (base.kind) {
    case Operand::Kind::reg: {
      if (e.facts.based_on[base.index] != kNoVariable && space != Space::shared) {
        address.kind = Address::Kind::storage;
        address.variable = e.facts.based_on[base.index];
        address.value = e.builder.CreateAdd(base_offset(e, base.index), e.i64(offset));
        return address;
      }
      bool narrow = ptx::bits_of(e.source.registers[base.index].type) <= 32;
      if (space == Space::shared && narrow) {
        llvm::Value* sum = e.builder.CreateAdd(e.read(base, Type::u32), e.i32(static_cast<uint32_t>(offset)));
        return shared(e.builder.CreateZExt(sum, e.builder.getInt64Ty()));
      }
      llvm::Value* sum = e.builder.CreateAdd(e.read(base, Type::u64), e.i64(offset));
      if (space == Space::shared) return shared(sum);
      address.value = sum;
      return address;
    }
    case Operand::Kind::variable: {
      if (auto it = e.linked.variables.find(base.index); it != e.linked.variables.end())
        return linked(it->second);
      address.kind = Address::Kind::storage;
      address.variable = base.index;
      address.value = e.i64(offset);
      return address;
    }
    case Operand::Kind::symbol: return linked(e.module.image.resolve(e.linked.file, base.name));
    case Operand::Kind::integer: {
      llvm::Value* value = e.i64(static_cast<uint64_t>(base.value) + offset);
      if (space == Space::shared) return shared(value);
      address.value = value;
      return address;
    }
    default: i.fail("invalid address operand");
  }
}

namespace {

llvm::Value* base_offset(Emitter& e, uint32_t reg) {
  llvm::AllocaInst*& memory = e.base_offsets[reg];
  if (!memory) {
    memory = e.entry_builder.CreateAlloca(e.builder.getInt64Ty());
    e.entry_builder.CreateStore(e.i64(0), memory);
  }
  return e.builder.CreateLoad(e.builder.getInt64Ty(), memory);
}

}  // namespace

// Called when `target` is written: if it always points into one variable, records its offset from the
// variable's start.
void remember_base(Emitter& e, const Operand& target, const Operand& source, llvm::Value* added) {
  if (target.kind != Operand::Kind::reg || e.facts.based_on[target.index] == kNoVariable) return;
  base_offset(e, target.index);  // creates the slot
  llvm::Value* offset = source.kind == Operand::Kind::reg ? base_offset(e, source.index)
                                                          : e.i64(static_cast<uint64_t>(source.value));
  if (added) offset = e.builder.CreateAdd(offset, added);
  e.builder.CreateStore(offset, e.base_offsets[target.index]);
}

namespace {

// Checks that the access lies in softgpu's range and is aligned; the runtime handles all other cases in a
// cold block.
void check_generic(Emitter& e, llvm::Value* address, uint32_t bytes, bool is_store, bool exact_alignment) {
  auto bits = static_cast<uint32_t>(std::countr_zero(bytes));
  auto rotate = [&](llvm::Value* value) -> llvm::Value* {
    return bits ? e.intrinsic(llvm::Intrinsic::fshr, {value, value, e.i64(bits)}) : value;
  };
  // Rotating the alignment bits to the top lets one comparison test both alignment and range.
  static_assert(std::has_single_bit(kRangeSize));
  constexpr auto kSizeBits = static_cast<uint32_t>(std::countr_zero(kRangeSize));
  llvm::Value* good;
  if constexpr (kRangeBase % kRangeSize == 0) {
    good = e.builder.CreateICmpEQ(e.builder.CreateLShr(rotate(address), e.i64(kSizeBits - bits)),
                                  e.i64(kRangeBase >> kSizeBits));
  } else {
    good = e.builder.CreateICmpULT(rotate(e.builder.CreateSub(address, e.i64(kRangeBase))),
                                   e.i64(kRangeSize >> bits));
  }
  auto *inside = e.new_block("inside"), *outside = e.new_block("outside");
  e.builder.CreateCondBr(good, inside, outside, unlikely(e.module.context));
  e.builder.SetInsertPoint(outside);
  auto* call = llvm::cast<llvm::CallInst>(e.call_runtime("softgpu_check_access", e.builder.getVoidTy(),
                                                         {e.thread, address, e.i32(bytes), e.i32(is_store)}));
  call->getCalledFunction()->addFnAttr(llvm::Attribute::Cold);
  if (exact_alignment && bytes > 1) {
    auto* unaligned = e.new_block("unaligned");
    e.builder.CreateCondBr(e.builder.CreateICmpEQ(e.builder.CreateAnd(address, e.i64(bytes - 1)), e.i64(0)),
                           inside, unaligned);
    e.builder.SetInsertPoint(unaligned);
    e.fault(FaultKind::misaligned_address, address);
  } else {
    e.builder.CreateBr(inside);
  }
  e.builder.SetInsertPoint(inside);
}

// Checks that the access at `offset` lies within `size` bytes and is aligned; else the grid ends with a
// fault.
void check_bounds(Emitter& e, llvm::Value* offset, llvm::Value* size, uint32_t bytes, uint32_t alignment,
                  llvm::Value* base) {
  // `size` is below 2^62, so this is negative if nothing fits.
  llvm::Value* last = e.builder.CreateSub(size, e.i64(bytes));
  llvm::Value* fits =
      e.builder.CreateAnd(e.builder.CreateICmpSGE(last, e.i64(0)), e.builder.CreateICmpULE(offset, last));
  llvm::Value* good = fits;
  if (alignment > 1)
    good = e.builder.CreateAnd(
        fits, e.builder.CreateICmpEQ(e.builder.CreateAnd(offset, e.i64(alignment - 1)), e.i64(0)));
  if (auto* constant = llvm::dyn_cast<llvm::ConstantInt>(good); constant && constant->isOne()) return;
  auto *inside = e.new_block("inside"), *outside = e.new_block("outside");
  e.builder.CreateCondBr(good, inside, outside, unlikely(e.module.context));
  e.builder.SetInsertPoint(outside);
  llvm::Value* kind =
      e.builder.CreateSelect(fits, e.i32(static_cast<uint32_t>(FaultKind::misaligned_address)),
                             e.i32(static_cast<uint32_t>(FaultKind::illegal_address)));
  auto* call = llvm::cast<llvm::CallInst>(e.call_runtime(
      "softgpu_fault", e.builder.getVoidTy(), {e.thread, kind, e.builder.CreateAdd(base, offset)}));
  call->getCalledFunction()->addFnAttr(llvm::Attribute::Cold);
  call->getCalledFunction()->addFnAttr(llvm::Attribute::NoReturn);
  e.builder.CreateUnreachable();
  e.builder.SetInsertPoint(inside);
}

}  // namespace

llvm::Value* checked_pointer(Emitter& e, Decoded& i, const Address& address, uint32_t bytes, bool is_store,
                             bool exact_alignment) {
  if (address.kind == Address::Kind::shared) {
    if (auto* constant = llvm::dyn_cast<llvm::ConstantInt>(address.value)) {
      uint64_t offset = constant->getZExtValue();
      if (offset % bytes == 0 && offset <= e.module.static_shared_bytes() &&
          bytes <= e.module.static_shared_bytes() - offset)
        return e.builder.CreateGEP(e.builder.getInt8Ty(), pointer_to(e, shared_base(e)), address.value);
    }
    llvm::Value* total = e.block_field(offsetof(BlockContext, total_shared_bytes), e.builder.getInt32Ty());
    if (auto* load = llvm::dyn_cast<llvm::LoadInst>(total))
      e.dimension_range(load, e.module.static_shared_bytes(), 1u << 31);
    check_bounds(e, address.value, e.builder.CreateZExt(total, e.builder.getInt64Ty()), bytes, bytes,
                 shared_base(e));
    return e.builder.CreateGEP(e.builder.getInt8Ty(), pointer_to(e, shared_base(e)), address.value);
  }
  if (address.kind == Address::Kind::storage) {
    Emitter::Storage& storage = e.variable_storage(address.variable);
    if (e.source.is_kernel && address.variable < e.source.parameters.size() && is_store)
      i.fail("kernel parameters are read-only");
    auto* constant = llvm::dyn_cast<llvm::ConstantInt>(address.value);
    bool inside = constant && constant->getZExtValue() <= storage.size &&
                  bytes <= storage.size - constant->getZExtValue();
    if (constant && !inside) i.fail("the access lies outside its variable");
    if (!exact_alignment) {
      if (!inside) {
        check_bounds(e, address.value, e.i64(storage.size), bytes, 1,
                     e.builder.CreatePtrToInt(storage.pointer, e.builder.getInt64Ty()));
      }
      return e.builder.CreateGEP(e.builder.getInt8Ty(), storage.pointer, address.value);
    }
    llvm::Value* generic =
        e.builder.CreateAdd(e.builder.CreatePtrToInt(storage.pointer, e.builder.getInt64Ty()), address.value);
    check_generic(e, generic, bytes, is_store, true);
    return pointer_to(e, generic);
  }
  if (address.safe_bytes < bytes || address.safe_alignment < bytes)
    check_generic(e, address.value, bytes, is_store, exact_alignment);
  return pointer_to(e, address.value);
}

// --- ld, st ---

namespace {

bool is_kernel_parameter(Emitter& e, const Address& address, uint32_t bytes) {
  if (!e.source.is_kernel || address.kind != Address::Kind::storage ||
      address.variable >= e.source.parameters.size())
    return false;
  auto* constant = llvm::dyn_cast<llvm::ConstantInt>(address.value);
  uint64_t size = e.source.parameters[address.variable].size;
  return constant && constant->getZExtValue() <= size && bytes <= size - constant->getZExtValue();
}

// Kernel parameters never change, so each is loaded once at the start, outside of the loop over the threads.
llvm::Value* kernel_parameter(Emitter& e, const Address& address, Type type) {
  uint64_t offset = llvm::cast<llvm::ConstantInt>(address.value)->getZExtValue();
  llvm::Value*& value = e.parameters[{address.variable, offset, type}];
  if (!value) {
    llvm::Value* pointer = e.entry_builder.CreateConstGEP1_64(
        e.builder.getInt8Ty(), e.variable_storage(address.variable).pointer, offset);
    auto* load = e.entry_builder.CreateAlignedLoad(e.module.ir_type(type), pointer, llvm::Align(1));
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(e.module.context, {}));
    value = load;
  }
  return value;
}

}  // namespace

void ld(Emitter& e, Decoded& i) {
  bool acquire = i.take("acquire"), relaxed = i.take("relaxed"),
       is_volatile = i.take_any({"volatile", "mmio"});
  i.take("weak");
  i.take_any({"cta", "cluster", "gpu", "sys"});
  Space space = take_space(e, i);
  bool constant = i.take("nc") || space == Space::constant || i.opcode() == "ldu";
  i.take_cache_hints();
  uint32_t width = i.take("v2") ? 2 : i.take("v4") ? 4 : i.take("v8") ? 8 : 1;
  Type type = i.type();
  i.done();
  if (i.operand_count() < 2 || i.operand_count() > 3) i.fail("expected two operands");
  if (type == Type::pred) i.fail("predicates cannot be loaded");
  const Operand& target = i.operand(0);
  std::span<const Operand> targets(&target, 1);
  if (width > 1) {
    if (target.kind != Operand::Kind::vector || target.count != width) i.fail("the vector's width is wrong");
    targets = i.elements(target);
  }
  uint32_t bytes = ptx::bytes_of(type);
  if (bytes * width > 32) i.fail("the vector is too wide");
  Address address = resolve(e, i, i.operand(1), space);
  if (width == 1 && is_kernel_parameter(e, address, bytes))
    return e.write(target, kernel_parameter(e, address, type), type);
  bool atomic = (acquire || relaxed) && bytes <= 8;
  llvm::Value* pointer = checked_pointer(e, i, address, bytes * width, false, atomic);
  llvm::Type* element = atomic ? e.module.int_type(bytes * 8) : e.module.ir_type(type);
  bool fresh = address.kind == Address::Kind::storage;  // may be uninitialised, so the value is frozen
  if (width > 1 && !atomic) {
    auto* vector = llvm::FixedVectorType::get(element, width);
    llvm::LoadInst* load = e.builder.CreateAlignedLoad(vector, pointer, llvm::Align(1), is_volatile);
    if (constant && !is_volatile)
      load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(e.module.context, {}));
    llvm::Value* value = fresh ? e.builder.CreateFreeze(load) : load;
    for (uint32_t n = 0; n < width; ++n) e.write(targets[n], e.builder.CreateExtractElement(value, n), type);
    return;
  }
  for (uint32_t n = 0; n < width; ++n) {
    llvm::Value* at =
        n ? e.builder.CreateConstGEP1_64(e.builder.getInt8Ty(), pointer, uint64_t{n} * bytes) : pointer;
    llvm::LoadInst* load =
        e.builder.CreateAlignedLoad(element, at, llvm::Align(atomic ? bytes : 1), is_volatile);
    if (atomic)
      load->setAtomic(acquire ? llvm::AtomicOrdering::Acquire : llvm::AtomicOrdering::Monotonic);
    else if (constant && !is_volatile)
      load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(e.module.context, {}));
    llvm::Value* value = fresh ? e.builder.CreateFreeze(load) : load;
    e.write(targets[n], e.convert_bits(value, e.module.ir_type(type), false), type);
  }
}

void st(Emitter& e, Decoded& i) {
  if (i.take("bulk")) return st_bulk(e, i);
  bool async = i.take("async");  // st.async subtracts the bytes from an mbarrier, except with .mmio
  if (async && i.peek(1) == "mmio") async = false;
  if (async && !i.take("mbarrier::complete_tx::bytes")) i.fail("expected .mbarrier::complete_tx::bytes");
  bool release = i.take("release"), relaxed = i.take("relaxed"),
       is_volatile = i.take_any({"volatile", "mmio"});
  i.take("weak");
  i.take_any({"cta", "cluster", "gpu", "sys"});
  Space space = take_space(e, i);
  i.take_cache_hints();
  uint32_t width = i.take("v2") ? 2 : i.take("v4") ? 4 : i.take("v8") ? 8 : 1;
  Type type = i.type();
  i.done();
  if (i.operand_count() < (async ? 3 : 2) || i.operand_count() > 3) i.fail("expected two operands");
  if (type == Type::pred) i.fail("predicates cannot be stored");
  if (async && space != Space::shared_cluster) i.fail("expected .shared::cluster");
  const Operand& source = i.operand(1);
  std::span<const Operand> sources(&source, 1);
  if (width > 1) {
    if (source.kind != Operand::Kind::vector || source.count != width) i.fail("the vector's width is wrong");
    sources = i.elements(source);
  }
  uint32_t bytes = ptx::bytes_of(type);
  if (bytes * width > 32) i.fail("the vector is too wide");
  bool atomic = (release || relaxed) && bytes <= 8;
  llvm::Value* pointer =
      checked_pointer(e, i, resolve(e, i, i.operand(0), space), bytes * width, true, atomic);
  llvm::Value* barrier = async ? mbarrier_pointer(e, i, 2, space) : nullptr;
  auto announce = [&] {
    if (barrier)
      e.call_runtime("softgpu_mbarrier_transfer", e.builder.getInt64Ty(),
                     {barrier, e.i64(-uint64_t{bytes} * width)});
  };
  if (width > 1 && !atomic) {
    llvm::Value* vector = llvm::PoisonValue::get(llvm::FixedVectorType::get(e.module.ir_type(type), width));
    for (uint32_t n = 0; n < width; ++n)
      vector = e.builder.CreateInsertElement(vector, e.read(sources[n], type), n);
    e.builder.CreateAlignedStore(vector, pointer, llvm::Align(1), is_volatile);
    return announce();
  }
  for (uint32_t n = 0; n < width; ++n) {
    llvm::Value* at =
        n ? e.builder.CreateConstGEP1_64(e.builder.getInt8Ty(), pointer, uint64_t{n} * bytes) : pointer;
    llvm::Value* value = e.read(sources[n], type);
    if (atomic) value = e.convert_bits(value, e.module.int_type(bytes * 8), false);
    llvm::StoreInst* store =
        e.builder.CreateAlignedStore(value, at, llvm::Align(atomic ? bytes : 1), is_volatile);
    if (atomic) store->setAtomic(release ? llvm::AtomicOrdering::Release : llvm::AtomicOrdering::Monotonic);
  }
  announce();
}

}  // namespace gpupool::softgpu::codegen
