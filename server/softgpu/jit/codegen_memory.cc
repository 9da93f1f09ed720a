// Addresses and their checks, loads and stores.
#include <llvm/IR/MDBuilder.h>

#include <bit>
#include <numeric>

#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

llvm::MDNode* unlikely(llvm::LLVMContext& context) {
  return llvm::MDBuilder(context).createBranchWeights(100000, 1);
}

}  // namespace

llvm::Value* FunctionCodegen::pointer_to(llvm::Value* address) {
  return b_.CreateIntToPtr(address, llvm::PointerType::get(m_.context, 0));
}

llvm::Value* FunctionCodegen::shared_base() {
  return block_field(offsetof(BlockContext, shared_base), b_.getInt64Ty());
}

Space FunctionCodegen::take_space(Decoded& i) {
  if (i.take("shared::cluster")) return Space::shared_cluster;
  std::string_view word = i.take_one(
      {"global", "shared", "shared::cta", "local", "const", "param", "param::entry", "param::func"});
  return word.empty() ? Space::generic : *ptx::find_space(word);
}

// --- Addresses ---

FunctionCodegen::Address FunctionCodegen::resolve(Decoded& i, const Operand& operand, Space space) {
  if (operand.kind != Operand::Kind::address && !operand.is_element)
    i.fail("expected an address in brackets");
  if (space == Space::shared_cluster) {
    Address own = resolve(i, operand, Space::shared);
    if (own.kind != Address::Kind::shared || llvm::isa<llvm::ConstantInt>(own.value)) return own;
    Address generic;
    generic.value = cluster_to_generic(own.value, i32(1));
    return generic;
  }
  const Operand& base = operand.is_element ? operand : f_.base(operand);
  Address address;
  auto offset = static_cast<uint64_t>(operand.value);
  auto shared = [&](llvm::Value* value) {
    address.kind = Address::Kind::shared;
    address.value = value;
    return address;
  };
  auto linked = [&](Symbol symbol) {
    if (symbol.kind == Symbol::Kind::shared) return shared(i64(m_.shared_offset(symbol.index) + offset));
    if (symbol.kind == Symbol::Kind::data) {
      address.value = b_.CreateAdd(linked_address(symbol, base.name), i64(offset));
      uint64_t size = m_.image.data[symbol.index].tree->size;
      address.safe_bytes = offset < size ? size - offset : 0;
      address.safe_alignment =
          std::gcd(uint64_t{m_.image.data[symbol.index].tree->alignment}, offset | 1ull << 12);
      return address;
    }
    if (symbol.kind == Symbol::Kind::undefined) linked_address(symbol, base.name);  // throws
    i.fail("functions cannot be read or written");
  };
  switch (base.kind) {
    case Operand::Kind::reg: {
      if (facts_.based_on[base.index] != kNoVariable && space != Space::shared) {
        address.kind = Address::Kind::storage;
        address.variable = facts_.based_on[base.index];
        address.value = b_.CreateAdd(base_offset(base.index), i64(offset));
        return address;
      }
      bool narrow = ptx::bits_of(f_.registers[base.index].type) <= 32;
      if (space == Space::shared && narrow) {
        llvm::Value* sum = b_.CreateAdd(read(base, Type::u32), i32(static_cast<uint32_t>(offset)));
        return shared(b_.CreateZExt(sum, b_.getInt64Ty()));
      }
      llvm::Value* sum = b_.CreateAdd(read(base, Type::u64), i64(offset));
      if (space == Space::shared) return shared(sum);
      address.value = sum;
      return address;
    }
    case Operand::Kind::variable: {
      if (auto it = linked_.variables.find(base.index); it != linked_.variables.end())
        return linked(it->second);
      address.kind = Address::Kind::storage;
      address.variable = base.index;
      address.value = i64(offset);
      return address;
    }
    case Operand::Kind::symbol: return linked(m_.image.resolve(linked_.file, base.name));
    case Operand::Kind::integer: {
      llvm::Value* value = i64(static_cast<uint64_t>(base.value) + offset);
      if (space == Space::shared) return shared(value);
      address.value = value;
      return address;
    }
    default: i.fail("invalid address operand");
  }
}

llvm::Value* FunctionCodegen::base_offset(uint32_t reg) {
  llvm::AllocaInst*& memory = base_offsets_[reg];
  if (!memory) {
    memory = entry_.CreateAlloca(b_.getInt64Ty());
    entry_.CreateStore(i64(0), memory);
  }
  return b_.CreateLoad(b_.getInt64Ty(), memory);
}

// Called when `target` is written: if it always points into one variable, records its offset from the
// variable's start.
void FunctionCodegen::remember_base(const Operand& target, const Operand& source, llvm::Value* added) {
  if (target.kind != Operand::Kind::reg || facts_.based_on[target.index] == kNoVariable) return;
  base_offset(target.index);  // creates the slot
  llvm::Value* offset = source.kind == Operand::Kind::reg ? base_offset(source.index)
                                                          : i64(static_cast<uint64_t>(source.value));
  if (added) offset = b_.CreateAdd(offset, added);
  b_.CreateStore(offset, base_offsets_[target.index]);
}

// Checks that the access lies in softgpu's range and is aligned; the runtime handles all other cases in a
// cold block.
void FunctionCodegen::check_generic(llvm::Value* address, uint32_t bytes, bool is_store,
                                    bool exact_alignment) {
  auto bits = static_cast<uint32_t>(std::countr_zero(bytes));
  auto rotate = [&](llvm::Value* value) -> llvm::Value* {
    return bits ? intrinsic(llvm::Intrinsic::fshr, {value, value, i64(bits)}) : value;
  };
  // Rotating the alignment bits to the top lets one comparison test both alignment and range.
  static_assert(std::has_single_bit(kRangeSize));
  constexpr auto kSizeBits = static_cast<uint32_t>(std::countr_zero(kRangeSize));
  llvm::Value* good;
  if constexpr (kRangeBase % kRangeSize == 0) {
    good =
        b_.CreateICmpEQ(b_.CreateLShr(rotate(address), i64(kSizeBits - bits)), i64(kRangeBase >> kSizeBits));
  } else {
    good = b_.CreateICmpULT(rotate(b_.CreateSub(address, i64(kRangeBase))), i64(kRangeSize >> bits));
  }
  auto *inside = new_block("inside"), *outside = new_block("outside");
  b_.CreateCondBr(good, inside, outside, unlikely(m_.context));
  b_.SetInsertPoint(outside);
  auto* call = llvm::cast<llvm::CallInst>(
      call_runtime("softgpu_check_access", b_.getVoidTy(), {thread_, address, i32(bytes), i32(is_store)}));
  call->getCalledFunction()->addFnAttr(llvm::Attribute::Cold);
  if (exact_alignment && bytes > 1) {
    auto* unaligned = new_block("unaligned");
    b_.CreateCondBr(b_.CreateICmpEQ(b_.CreateAnd(address, i64(bytes - 1)), i64(0)), inside, unaligned);
    b_.SetInsertPoint(unaligned);
    fault(FaultKind::misaligned_address, address);
  } else {
    b_.CreateBr(inside);
  }
  b_.SetInsertPoint(inside);
}

// Checks that the access at `offset` lies within `size` bytes and is aligned; else the grid ends with a
// fault.
void FunctionCodegen::check_bounds(llvm::Value* offset, llvm::Value* size, uint32_t bytes, uint32_t alignment,
                                   llvm::Value* base) {
  // `size` is below 2^62, so this is negative if nothing fits.
  llvm::Value* last = b_.CreateSub(size, i64(bytes));
  llvm::Value* fits = b_.CreateAnd(b_.CreateICmpSGE(last, i64(0)), b_.CreateICmpULE(offset, last));
  llvm::Value* good = fits;
  if (alignment > 1)
    good = b_.CreateAnd(fits, b_.CreateICmpEQ(b_.CreateAnd(offset, i64(alignment - 1)), i64(0)));
  if (auto* constant = llvm::dyn_cast<llvm::ConstantInt>(good); constant && constant->isOne()) return;
  auto *inside = new_block("inside"), *outside = new_block("outside");
  b_.CreateCondBr(good, inside, outside, unlikely(m_.context));
  b_.SetInsertPoint(outside);
  llvm::Value* kind = b_.CreateSelect(fits, i32(static_cast<uint32_t>(FaultKind::misaligned_address)),
                                      i32(static_cast<uint32_t>(FaultKind::illegal_address)));
  auto* call = llvm::cast<llvm::CallInst>(
      call_runtime("softgpu_fault", b_.getVoidTy(), {thread_, kind, b_.CreateAdd(base, offset)}));
  call->getCalledFunction()->addFnAttr(llvm::Attribute::Cold);
  call->getCalledFunction()->addFnAttr(llvm::Attribute::NoReturn);
  b_.CreateUnreachable();
  b_.SetInsertPoint(inside);
}

llvm::Value* FunctionCodegen::checked_pointer(Decoded& i, const Address& address, uint32_t bytes,
                                              bool is_store, bool exact_alignment) {
  if (address.kind == Address::Kind::shared) {
    if (auto* constant = llvm::dyn_cast<llvm::ConstantInt>(address.value)) {
      uint64_t offset = constant->getZExtValue();
      if (offset % bytes == 0 && offset <= m_.static_shared_bytes() &&
          bytes <= m_.static_shared_bytes() - offset)
        return b_.CreateGEP(b_.getInt8Ty(), pointer_to(shared_base()), address.value);
    }
    llvm::Value* total = block_field(offsetof(BlockContext, total_shared_bytes), b_.getInt32Ty());
    if (auto* load = llvm::dyn_cast<llvm::LoadInst>(total))
      dimension_range(load, m_.static_shared_bytes(), 1u << 31);
    check_bounds(address.value, b_.CreateZExt(total, b_.getInt64Ty()), bytes, bytes, shared_base());
    return b_.CreateGEP(b_.getInt8Ty(), pointer_to(shared_base()), address.value);
  }
  if (address.kind == Address::Kind::storage) {
    Storage& storage = variable_storage(address.variable);
    if (f_.is_kernel && address.variable < f_.parameters.size() && is_store)
      i.fail("kernel parameters are read-only");
    auto* constant = llvm::dyn_cast<llvm::ConstantInt>(address.value);
    bool inside = constant && constant->getZExtValue() <= storage.size &&
                  bytes <= storage.size - constant->getZExtValue();
    if (constant && !inside) i.fail("the access lies outside its variable");
    if (!exact_alignment) {
      if (!inside) {
        check_bounds(address.value, i64(storage.size), bytes, 1,
                     b_.CreatePtrToInt(storage.pointer, b_.getInt64Ty()));
      }
      return b_.CreateGEP(b_.getInt8Ty(), storage.pointer, address.value);
    }
    llvm::Value* generic = b_.CreateAdd(b_.CreatePtrToInt(storage.pointer, b_.getInt64Ty()), address.value);
    check_generic(generic, bytes, is_store, true);
    return pointer_to(generic);
  }
  if (address.safe_bytes < bytes || address.safe_alignment < bytes)
    check_generic(address.value, bytes, is_store, exact_alignment);
  return pointer_to(address.value);
}

// --- ld, st ---

bool FunctionCodegen::is_kernel_parameter(const Address& address, uint32_t bytes) {
  if (!f_.is_kernel || address.kind != Address::Kind::storage || address.variable >= f_.parameters.size())
    return false;
  auto* constant = llvm::dyn_cast<llvm::ConstantInt>(address.value);
  uint64_t size = f_.parameters[address.variable].size;
  return constant && constant->getZExtValue() <= size && bytes <= size - constant->getZExtValue();
}

// Kernel parameters never change, so each is loaded once at the start, outside of the loop over the threads.
llvm::Value* FunctionCodegen::kernel_parameter(const Address& address, Type type) {
  uint64_t offset = llvm::cast<llvm::ConstantInt>(address.value)->getZExtValue();
  llvm::Value*& value = parameters_[{address.variable, offset, type}];
  if (!value) {
    llvm::Value* pointer =
        entry_.CreateConstGEP1_64(b_.getInt8Ty(), variable_storage(address.variable).pointer, offset);
    auto* load = entry_.CreateAlignedLoad(m_.ir_type(type), pointer, llvm::Align(1));
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(m_.context, {}));
    value = load;
  }
  return value;
}

void FunctionCodegen::ld(Decoded& i) {
  bool acquire = i.take("acquire"), relaxed = i.take("relaxed"),
       is_volatile = i.take_any({"volatile", "mmio"});
  i.take("weak");
  i.take_any({"cta", "cluster", "gpu", "sys"});
  Space space = take_space(i);
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
  Address address = resolve(i, i.operand(1), space);
  if (width == 1 && is_kernel_parameter(address, bytes))
    return write(target, kernel_parameter(address, type), type);
  bool atomic = (acquire || relaxed) && bytes <= 8;
  llvm::Value* pointer = checked_pointer(i, address, bytes * width, false, atomic);
  llvm::Type* element = atomic ? m_.int_type(bytes * 8) : m_.ir_type(type);
  bool fresh = address.kind == Address::Kind::storage;  // may be uninitialised, so the value is frozen
  if (width > 1 && !atomic) {
    auto* vector = llvm::FixedVectorType::get(element, width);
    llvm::LoadInst* load = b_.CreateAlignedLoad(vector, pointer, llvm::Align(1), is_volatile);
    if (constant && !is_volatile)
      load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(m_.context, {}));
    llvm::Value* value = fresh ? b_.CreateFreeze(load) : load;
    for (uint32_t n = 0; n < width; ++n) write(targets[n], b_.CreateExtractElement(value, n), type);
    return;
  }
  for (uint32_t n = 0; n < width; ++n) {
    llvm::Value* at = n ? b_.CreateConstGEP1_64(b_.getInt8Ty(), pointer, uint64_t{n} * bytes) : pointer;
    llvm::LoadInst* load = b_.CreateAlignedLoad(element, at, llvm::Align(atomic ? bytes : 1), is_volatile);
    if (atomic)
      load->setAtomic(acquire ? llvm::AtomicOrdering::Acquire : llvm::AtomicOrdering::Monotonic);
    else if (constant && !is_volatile)
      load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(m_.context, {}));
    llvm::Value* value = fresh ? b_.CreateFreeze(load) : load;
    write(targets[n], convert_bits(value, m_.ir_type(type), false), type);
  }
}

void FunctionCodegen::st(Decoded& i) {
  if (i.take("bulk")) return st_bulk(i);
  bool async = i.take("async");  // st.async subtracts the bytes from an mbarrier, except with .mmio
  if (async && i.peek(1) == "mmio") async = false;
  if (async && !i.take("mbarrier::complete_tx::bytes")) i.fail("expected .mbarrier::complete_tx::bytes");
  bool release = i.take("release"), relaxed = i.take("relaxed"),
       is_volatile = i.take_any({"volatile", "mmio"});
  i.take("weak");
  i.take_any({"cta", "cluster", "gpu", "sys"});
  Space space = take_space(i);
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
  llvm::Value* pointer = checked_pointer(i, resolve(i, i.operand(0), space), bytes * width, true, atomic);
  llvm::Value* barrier = async ? mbarrier_pointer(i, 2, space) : nullptr;
  auto announce = [&] {
    if (barrier)
      call_runtime("softgpu_mbarrier_transfer", b_.getInt64Ty(), {barrier, i64(-uint64_t{bytes} * width)});
  };
  if (width > 1 && !atomic) {
    llvm::Value* vector = llvm::PoisonValue::get(llvm::FixedVectorType::get(m_.ir_type(type), width));
    for (uint32_t n = 0; n < width; ++n) vector = b_.CreateInsertElement(vector, read(sources[n], type), n);
    b_.CreateAlignedStore(vector, pointer, llvm::Align(1), is_volatile);
    return announce();
  }
  for (uint32_t n = 0; n < width; ++n) {
    llvm::Value* at = n ? b_.CreateConstGEP1_64(b_.getInt8Ty(), pointer, uint64_t{n} * bytes) : pointer;
    llvm::Value* value = read(sources[n], type);
    if (atomic) value = convert_bits(value, m_.int_type(bytes * 8), false);
    llvm::StoreInst* store = b_.CreateAlignedStore(value, at, llvm::Align(atomic ? bytes : 1), is_volatile);
    if (atomic) store->setAtomic(release ? llvm::AtomicOrdering::Release : llvm::AtomicOrdering::Monotonic);
  }
  announce();
}

}  // namespace gpupool::softgpu
