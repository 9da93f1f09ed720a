// mma, wmma, ldmatrix, stmatrix, movmatrix: the operands are collected into arrays of words; matrix.cc
// computes.
#include <charconv>

#include "server/softgpu/jit/codegen_memory.h"
#include "server/softgpu/jit/instructions.h"
#include "server/softgpu/jit/matrix.h"

namespace gpupool::softgpu::codegen {
namespace {

// Memory that rows of a matrix may be in.
struct Window {
  llvm::Value *address, *low, *high;  // i64
};

// "m16n8k16"
bool read_shape(std::string_view text, MatrixOperation& o) {
  const char *at = text.data(), *end = at + text.size();
  for (auto [letter, size] : {std::pair{'m', &o.m}, {'n', &o.n}, {'k', &o.k}}) {
    if (at == end || *at != letter) return false;
    const auto [next, error] = std::from_chars(at + 1, end, *size);
    if (error != std::errc() || *size > 512) return false;
    at = next;
  }
  return at == end;
}

MatrixElement take_element(Decoded& i) {
  const std::string_view name = i.take_next();
  if (auto element = find_matrix_element(name)) return *element;
  i.fail("." + std::string(name.substr(0, 60)) + " is not a supported matrix element type");
}

bool take_layout(Decoded& i) {  // returns true for column-major
  const std::string_view layout = i.take_next();
  if (layout != "row" && layout != "col") i.fail("expected .row or .col");
  return layout == "col";
}

void take_matrix_shape(Decoded& i, MatrixOperation& o) {
  const std::string_view shape = i.take_next();
  if (!read_shape(shape, o)) i.fail("." + std::string(shape.substr(0, 60)) + " is not a supported shape");
}

void check_known(Decoded& i, const MatrixOperation& o) {
  if (!o.is_known()) i.fail("this shape does not exist with these types");
}

// Returns an array of words in the function's frame.
llvm::Value* word_array(Emitter& e, uint32_t words) {
  return e.temporary(llvm::ArrayType::get(e.builder.getInt32Ty(), words));
}

llvm::Value* word_at(Emitter& e, llvm::Value* array, uint32_t index) {
  return e.builder.CreateConstGEP1_32(e.builder.getInt32Ty(), array, index);
}

// Stores registers of 32 bits, or of 64 (`wide`), that hold `words` words in total.
void store_words(Emitter& e, Decoded& i, const Operand& operand, llvm::Value* array, uint32_t first,
                 uint32_t words, bool wide) {
  std::span<const Operand> registers(&operand, 1);
  if (operand.kind == Operand::Kind::vector) registers = i.elements(operand);
  if (registers.size() * (wide ? 2 : 1) != words) i.fail("a fragment has the wrong number of registers");
  for (const Operand& one : registers) {
    llvm::Value* value = e.read(one, wide ? Type::b64 : Type::b32);
    e.builder.CreateAlignedStore(value, word_at(e, array, first), llvm::Align(4));
    first += wide ? 2 : 1;
  }
}

void load_words(Emitter& e, Decoded& i, const Operand& operand, llvm::Value* array, uint32_t words,
                bool wide) {
  std::span<const Operand> registers(&operand, 1);
  if (operand.kind == Operand::Kind::vector) registers = i.elements(operand);
  if (registers.size() * (wide ? 2 : 1) != words) i.fail("a fragment has the wrong number of registers");
  uint32_t at = 0;
  for (const Operand& one : registers) {
    llvm::Type* type = e.module.int_type(wide ? 64 : 32);
    e.write(one, e.builder.CreateAlignedLoad(type, word_at(e, array, at), llvm::Align(4)),
            wide ? Type::b64 : Type::b32);
    at += wide ? 2 : 1;
  }
}

// Returns the generic address of an operand in brackets, and the bounds that accesses must stay in (two
// zeros: unchecked).
Window window_of(Emitter& e, Decoded& i, const Operand& operand, Space space) {
  Address address = resolve(e, i, operand, space);
  llvm::Type* word = e.builder.getInt64Ty();
  if (address.kind == Address::Kind::shared) {
    llvm::Value* low = shared_base(e);
    llvm::Value* size = e.builder.CreateZExt(
        e.block_field(offsetof(BlockContext, total_shared_bytes), e.builder.getInt32Ty()), word);
    return {e.builder.CreateAdd(low, address.value), low, e.builder.CreateAdd(low, size)};
  }
  if (address.kind == Address::Kind::storage)
    i.fail("matrices can be loaded and stored only in shared and global memory");
  return {address.value, e.i64(0), e.i64(0)};
}

void multiply_matrices(Emitter& e, Decoded& i, const MatrixOperation& o) {
  check_known(i, o);
  const uint32_t a = o.words(MatrixPart::a), b = o.words(MatrixPart::b), c = o.words(MatrixPart::c),
                 d = o.result_words();
  const bool wide = o.a == MatrixElement::f64;
  llvm::Value* in = word_array(e, a + b + c);
  llvm::Value* out = word_array(e, d);
  store_words(e, i, i.operand(1), in, 0, a, wide);
  store_words(e, i, i.operand(2), in, a, b, wide);
  store_words(e, i, i.operand(3), in, a + b, c, wide);
  e.call_runtime("softgpu_mma", e.builder.getVoidTy(), {e.thread, e.i64(o.pack()), in, out});
  load_words(e, i, i.operand(0), out, d, wide);
}

}  // namespace

void mma(Emitter& e, Decoded& i) {
  if (i.peek(0) != "sync") i.fail("sparse and block-scaled products are not supported");
  MatrixOperation o;
  i.take_any({"sync", "aligned", "rn", "popc"});
  o.saturates = i.take("satfinite");
  o.uses_and = i.take("and");
  i.take("xor");
  take_matrix_shape(i, o);
  o.a_by_column = take_layout(i);
  o.b_by_row = !take_layout(i);
  for (MatrixElement* element : {&o.d, &o.a, &o.b, &o.c}) *element = take_element(i);
  i.done(4);
  if (o.m == 8 && o.k == 4 && o.a == MatrixElement::f16)
    o.layout = MatrixLayout::quads;
  else if (o.a_by_column || o.b_by_row)
    i.fail("expected .row.col");
  multiply_matrices(e, i, o);
}

void wmma(Emitter& e, Decoded& i) {
  MatrixOperation o;
  o.layout = MatrixLayout::wmma;
  const std::string_view op = i.take_one({"load", "store", "mma"});
  if (op == "mma") {
    i.take_any({"sync", "aligned", "popc", "rn"});
    o.saturates = i.take("satfinite");
    o.uses_and = i.take("and");
    i.take("xor");
    take_layout(i);
    take_layout(i);
    take_matrix_shape(i, o);
    o.d = take_element(i);
    const MatrixElement second = take_element(i);
    // For f16, only the types of d and c are written.
    if (std::string_view third = i.take_next(); !third.empty()) {
      auto b = find_matrix_element(third);
      if (!b) i.fail("unknown type");
      o.a = second;
      o.b = *b;
      o.c = take_element(i);
    } else {
      o.c = second;
    }
    i.done(4);
    return multiply_matrices(e, i, o);
  }
  const std::string_view matrix = i.take_one({"a", "b", "c", "d"});
  if (op.empty() || matrix.empty() || (op == "store") != (matrix == "d"))
    i.fail("expected load, store or mma");
  i.take_any({"sync", "aligned"});
  Space space = take_space(e, i);
  const bool by_column = take_layout(i);
  take_matrix_shape(i, o);
  const MatrixElement element = take_element(i);
  i.done();
  const MatrixPart part = matrix == "a" ? MatrixPart::a : matrix == "b" ? MatrixPart::b : MatrixPart::c;
  if (part == MatrixPart::c) {
    o.c = o.d = element;
    // Choose the types that go with this accumulator, to check the shape.
    using E = MatrixElement;
    o.a = o.b = element == E::f64               ? E::f64
                : element == E::f16             ? E::f16
                : element == E::f32 && o.k == 8 ? E::tf32
                : element != E::s32             ? E::f16
                : o.k == 16                     ? E::s8
                : o.k == 32                     ? E::s4
                                                : E::b1;
  } else {
    o.a = o.b = element;
    o.c = o.d = element == MatrixElement::f64 ? MatrixElement::f64
                : bits_of(element) <= 8       ? MatrixElement::s32
                                              : MatrixElement::f32;
  }
  check_known(i, o);
  const size_t count = i.operand_count(), memory = op == "load" ? 1 : 0;
  if (count < 2 || count > 3) i.fail("expected a fragment and an address");
  llvm::Value* stride =
      count == 3 ? e.read(i, 2, Type::u32) : e.i32(by_column ? o.rows(part) : o.columns(part));
  Window window = window_of(e, i, i.operand(memory), space);
  const uint32_t words = o.words(part);
  const bool wide = element == MatrixElement::f64;
  llvm::Value* array = word_array(e, words);
  if (op == "load") {
    e.call_runtime("softgpu_wmma_load", e.builder.getVoidTy(),
                   {e.thread, e.i64(o.pack()), e.builder.getInt8(static_cast<uint8_t>(part)),
                    e.i32(by_column), window.address, window.low, window.high, stride, array});
    return load_words(e, i, i.operand(0), array, words, wide);
  }
  store_words(e, i, i.operand(1), array, 0, words, wide);
  e.call_runtime(
      "softgpu_wmma_store", e.builder.getVoidTy(),
      {e.thread, e.i64(o.pack()), e.i32(by_column), window.address, window.low, window.high, stride, array});
}

// ldmatrix and stmatrix of 8 x 8 elements of 16 bits.
void move_matrix(Emitter& e, Decoded& i) {
  const bool loads = i.opcode() == "ldmatrix";
  i.take_any({"sync", "aligned"});
  if (!i.take("m8n8") || !i.take("b16")) i.fail("expected .m8n8 and .b16");
  const bool transposes = i.take("trans");
  const std::string_view number = i.take_one({"x1", "x2", "x4"});
  Space space = take_space(e, i);
  i.done(2);
  if (number.empty()) i.fail("expected .x1, .x2 or .x4");
  const auto count = static_cast<uint32_t>(number[1] - '0');
  Window window = window_of(e, i, i.operand(loads ? 1 : 0), space);
  llvm::Value* array = word_array(e, count);
  if (!loads) store_words(e, i, i.operand(1), array, 0, count, false);
  e.call_runtime(loads ? "softgpu_ldmatrix" : "softgpu_stmatrix", e.builder.getVoidTy(),
                 {e.thread, e.i32(count), e.i32(transposes), window.address, window.low, window.high, array});
  if (loads) load_words(e, i, i.operand(0), array, count, false);
}

void movmatrix(Emitter& e, Decoded& i) {
  i.take_any({"sync", "aligned"});
  if (!i.take("m8n8") || !i.take("trans") || !i.take("b16")) i.fail("expected .m8n8.trans.b16");
  i.done(2);
  e.write(i.operand(0),
          e.call_runtime("softgpu_movmatrix", e.builder.getInt32Ty(), {e.thread, e.read(i, 1, Type::b32)}),
          Type::b32);
}

}  // namespace gpupool::softgpu::codegen
