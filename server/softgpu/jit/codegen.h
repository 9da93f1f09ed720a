// Generates LLVM IR from linked PTX. Private to jit/.
//
// ModuleCodegen owns the declarations and function tables of one LLVM module; FunctionCodegen translates one
// PTX function. Neither is thread-safe. Code that cannot be translated throws CodegenFailure, which
// generate_kernel() and check_functions() turn into a CompileError; the IR built so far is then discarded.
#pragma once
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "server/softgpu/jit/builtins.h"
#include "server/softgpu/jit/decoded.h"
#include "server/softgpu/jit/link.h"
#include "server/softgpu/jit/matrix.h"

namespace gpupool::softgpu {

using ptx::Operand;
using ptx::Space;
using ptx::Type;

constexpr const char* kThreadEntryName = "softgpu_thread_entry";
constexpr const char* kLoopEntryName = "softgpu_loop_entry";

class ModuleCodegen {
 public:
  // kernel null: the functions are only checked, and all shared variables get offset 0.
  ModuleCodegen(const Image& image, const LinkedKernel* kernel, llvm::Module& module)
      : image(image), kernel(kernel), module(module), context(module.getContext()) {}

  void generate_function(uint32_t index);
  void generate_entries();  // thread_entry, and loop_entry if `kernel` does not synchronise

  llvm::Function* function(uint32_t index);        // declares it if needed
  llvm::Function* body(uint32_t kernel_function);  // void (thread, block, tid.x, tid.y, tid.z)
  llvm::FunctionType* function_type(const std::vector<ptx::Variable>& results,
                                    const std::vector<ptx::Variable>& parameters);
  // Array of pointers, indexed like Image::functions: null for functions of another signature or whose
  // address is never taken.
  llvm::GlobalVariable* function_table(const std::vector<ptx::Variable>& results,
                                       const std::vector<ptx::Variable>& parameters);
  void finish_tables();
  llvm::Type* int_type(uint32_t bits) { return llvm::IntegerType::get(context, bits); }
  llvm::Type* ir_type(Type type);
  uint32_t shared_offset(uint32_t variable) const;
  // Numbers increase along the code of a function, and from called functions to their callers.
  uint32_t convergence_point(const LinkedFunction& function, uint32_t instruction) const;
  uint32_t static_shared_bytes() const { return kernel ? kernel->info.static_shared_bytes : 0; }

  const Image& image;
  const LinkedKernel* kernel;
  llvm::Module& module;
  llvm::LLVMContext& context;

 private:
  std::unordered_map<uint32_t, llvm::Function*> functions_;
  std::map<std::string, llvm::GlobalVariable*> tables_;  // by signature
};

class FunctionCodegen {
 public:
  FunctionCodegen(ModuleCodegen& module, uint32_t index);
  void run();

 private:
  using Handler = void (FunctionCodegen::*)(Decoded&);
  static Handler find_handler(std::string_view opcode);

  // Memory of a function-scope variable.
  struct Storage {
    llvm::Value* pointer = nullptr;
    uint64_t size = 0;
  };
  struct Address {
    enum class Kind { generic, shared, storage } kind = Kind::generic;
    llvm::Value* value = nullptr;  // generic: i64 address; shared: i64 offset; storage: i64 offset
    uint32_t variable = 0;         // storage
    uint64_t safe_bytes = 0;       // generic: number of bytes known to be accessible
    uint64_t safe_alignment = 1;   // generic: their known alignment
  };

  // --- Function frame (codegen_function.cc) ---
  void prepare_blocks();
  Storage& variable_storage(uint32_t variable);
  void prepare_arguments();
  void generate_instruction(uint32_t index);
  void dispatch(Decoded& i);
  void return_from_function();
  llvm::BasicBlock* new_block(const char* name);
  void start_block(llvm::BasicBlock* block);
  llvm::Value* value_of_guard(const ptx::Instruction& i);

  // --- Operands (codegen_operand.cc) ---
  llvm::Value* read(const Operand& operand, Type type);
  llvm::Value* read(Decoded& i, size_t index, Type type) { return read(i.operand(index), type); }
  llvm::Value* read_register(uint32_t reg, Type type);
  llvm::Value* read_predicate(const Operand& operand);
  llvm::Value* read_special(const Operand& operand, Type type);
  llvm::Value* special_64(std::string_view name);
  llvm::Value* special_32(std::string_view name, char component);
  void write(const Operand& operand, llvm::Value* value, Type type);
  llvm::Value* convert_bits(llvm::Value* value, llvm::Type* to, bool sign_extend);
  llvm::Value* symbol_address(const Operand& operand);
  llvm::Value* variable_address(uint32_t variable);
  llvm::Value* linked_address(Symbol symbol, std::string_view name);
  llvm::Value* function_address(uint32_t index);
  std::pair<const Operand*, const Operand*> split_pair(Decoded& i, const Operand& operand);

  // --- Helpers ---
  llvm::Value* i32(uint32_t value) { return b_.getInt32(value); }
  llvm::Value* i64(uint64_t value) { return b_.getInt64(value); }
  llvm::Value* block_field(uint32_t offset, llvm::Type* type, uint64_t limit = 0);
  llvm::Value* thread_field(uint32_t offset, uint64_t limit = 0);
  llvm::Value* dimension_range(llvm::LoadInst* load, uint64_t low, uint64_t high);
  llvm::AllocaInst* temporary(llvm::Type* type);
  llvm::Value* call_runtime(const char* name, llvm::Type* result, llvm::ArrayRef<llvm::Value*> arguments);
  llvm::Value* call_pure(const char* name, llvm::Type* result, std::initializer_list<llvm::Value*> arguments);
  llvm::Value* intrinsic(llvm::Intrinsic::ID id, std::initializer_list<llvm::Value*> arguments);
  llvm::Value* select_min(llvm::Value* a, llvm::Value* b, bool is_signed);
  void fault(FaultKind kind, llvm::Value* address);  // terminates the current block

  // --- Control flow and calls (codegen_control.cc) ---
  void bra(Decoded& i);
  void brx(Decoded& i);
  void ret(Decoded& i);
  void exit(Decoded& i);
  void trap(Decoded& i);
  void call(Decoded& i);
  void nothing(Decoded& i);
  void call_builtin(Decoded& i, const Builtin& builtin, std::span<const Operand> results,
                    std::span<const Operand> arguments);
  void call_function(Decoded& i, llvm::FunctionType* type, llvm::Value* callee,
                     const std::vector<ptx::Variable>& results, const std::vector<ptx::Variable>& parameters,
                     std::span<const Operand> result_operands, std::span<const Operand> arguments);
  llvm::Value* argument(Decoded& i, const Operand& operand, const ptx::Variable& parameter);
  void store_result(Decoded& i, const Operand& operand, llvm::Value* value, const ptx::Variable& result);

  // --- Memory (codegen_memory.cc, codegen_atomic.cc, codegen_mbarrier.cc) ---
  Address resolve(Decoded& i, const Operand& operand, Space space);
  llvm::Value* checked_pointer(Decoded& i, const Address& address, uint32_t bytes, bool is_store,
                               bool exact_alignment);
  void check_generic(llvm::Value* address, uint32_t bytes, bool is_store, bool exact_alignment);
  void check_bounds(llvm::Value* offset, llvm::Value* size, uint32_t bytes, uint32_t alignment,
                    llvm::Value* address);
  Space take_space(Decoded& i);
  llvm::Value* shared_base();
  llvm::Value* pointer_to(llvm::Value* address);
  llvm::Value* base_offset(uint32_t reg);
  void remember_base(const Operand& target, const Operand& source, llvm::Value* added);
  bool is_kernel_parameter(const Address& address, uint32_t bytes);
  llvm::Value* kernel_parameter(const Address& address, Type type);
  void ld(Decoded& i);
  void st(Decoded& i);
  void cvta(Decoded& i);
  void isspacep(Decoded& i);
  void mov(Decoded& i);
  void mov_vector(Decoded& i, Type type);
  void cp(Decoded& i);
  void atom(Decoded& i);
  void red(Decoded& i);
  void atomic(Decoded& i, bool has_result);
  llvm::Value* atomic_loop(llvm::Value* pointer, Type type, llvm::AtomicOrdering order,
                           const std::function<llvm::Value*(llvm::Value*)>& update);
  void membar(Decoded& i);
  void fence(Decoded& i);

  llvm::Value* mbarrier_pointer(Decoded& i, size_t operand, Space space);
  void mbarrier(Decoded& i);
  void cp_mbarrier_arrive(Decoded& i);
  // --- Clusters (codegen_cluster.cc) ---
  void cluster_barrier(Decoded& i);
  void mapa(Decoded& i);
  void clusterlaunchcontrol(Decoded& i);
  void getctarank(Decoded& i);
  llvm::Value* cluster_to_generic(llvm::Value* address, llvm::Value* bytes);
  llvm::Value* cluster_rank_of(llvm::Value* generic);
  // --- Bulk copies, tensor maps (codegen_bulk.cc) ---
  llvm::Value* bulk_address(Decoded& i, size_t operand, std::string_view space, llvm::Value* bytes);
  void cp_bulk(Decoded& i, bool reduces);
  void cp_bulk_tensor(Decoded& i, bool reduces);
  llvm::Value* tensor_coordinates(Decoded& i, const Operand& tensor, uint32_t count, llvm::Value*& map);
  void st_bulk(Decoded& i);
  void tensormap(Decoded& i);

  // --- Integers (codegen_integer.cc, codegen_bits.cc, codegen_video.cc) ---
  void add(Decoded& i);
  void add_pairs(Decoded& i);
  void sub(Decoded& i);
  void add_with_carry(Decoded& i);
  void carry_out(llvm::Value* value);  // null: only creates the flag
  llvm::Value* carry_in();
  llvm::Value* add_carry(llvm::Value* a, llvm::Value* b, llvm::Value* in, bool out);
  void mul(Decoded& i);
  void mad(Decoded& i);
  llvm::Value* multiply(Decoded& i, Type type, std::string_view part, llvm::Value* a, llvm::Value* b);
  void mul24(Decoded& i);
  void sad(Decoded& i);
  void div(Decoded& i);
  void rem(Decoded& i);
  llvm::Value* divide(Type type, llvm::Value* a, llvm::Value* b, bool remainder);
  void abs(Decoded& i);
  void neg(Decoded& i);
  void min_max(Decoded& i);
  void dp(Decoded& i);
  void logic(Decoded& i);
  void lnot(Decoded& i);
  void cnot(Decoded& i);
  void lop3(Decoded& i);
  void shift(Decoded& i);
  void shf(Decoded& i);
  void prmt(Decoded& i);
  void bfe(Decoded& i);
  void bfi(Decoded& i);
  void bmsk(Decoded& i);
  void szext(Decoded& i);
  void bit_count(Decoded& i);  // popc, clz, brev
  void bfind(Decoded& i);
  void fns(Decoded& i);
  // Reads an operand of a video instruction: a part of a register, or a negated register.
  llvm::Value* video_operand(Decoded& i, size_t index, Type type, llvm::Type* wide);
  llvm::Value* clamp(llvm::Value* value, uint32_t bits, bool is_signed);
  void finish_video(Decoded& i, llvm::Value* value, Type to, bool saturate, std::string_view second);
  void video(Decoded& i);
  void video_lanes(Decoded& i);
  llvm::Value* shift_left(llvm::Value* value, llvm::Value* amount);
  llvm::Value* shift_right(llvm::Value* value, llvm::Value* amount, bool arithmetic);

  // --- Floating point (codegen_float.cc, codegen_half.cc, codegen_convert.cc) ---
  struct FloatMode {
    Rounding rounding = Rounding::none;
    bool flush = false, saturate = false, relu = false;
    bool zero_outside = false;  // .oob: a factor from outside a tensor gives 0
  };
  FloatMode take_float_mode(Decoded& i);
  llvm::Value* directed(uint32_t operation, Rounding rounding, llvm::Value* a, llvm::Value* b = nullptr,
                        llvm::Value* c = nullptr);
  llvm::Value* read_float(Decoded& i, size_t index, Type type, bool flush);
  llvm::Value* flush_subnormal(llvm::Value* value);
  llvm::Value* finish_float(llvm::Value* value, Type type, const FloatMode& mode);
  void float_binary(Decoded& i, Type type, FloatMode mode);
  void fma(Decoded& i);
  void float_fma(Decoded& i, Type type, FloatMode mode);
  void float_div(Decoded& i, Type type, FloatMode mode, bool approximate);
  void float_unary(Decoded& i);    // rcp sqrt rsqrt sin cos lg2 ex2 tanh
  void float_abs_neg(Decoded& i);  // also handles integers
  void float_min_max(Decoded& i, Type type, FloatMode mode, bool nan, bool magnitude);
  llvm::Value* minimum(llvm::Value* a, llvm::Value* b, bool maximum, bool propagate_nan);
  void testp(Decoded& i);
  void copysign(Decoded& i);
  void half_binary(Decoded& i, Type type, FloatMode mode);
  void half_fma(Decoded& i, Type type, FloatMode mode);
  llvm::Value* for_halves(Type type, std::initializer_list<llvm::Value*> operands,
                          const std::function<llvm::Value*(Type, std::vector<llvm::Value*>)>& operation);
  llvm::Value* half_to_float(llvm::Value* half, Type type);
  llvm::Value* float_to_half(llvm::Value* value, Type type, Rounding rounding);
  llvm::Value* half_arithmetic(std::string_view op, Type type, const std::vector<llvm::Value*>& halves,
                               FloatMode mode);
  void cvt(Decoded& i);
  void cvt_pack(Decoded& i);
  void cvt_two_halves(Decoded& i, Type to, FloatMode mode, bool finite);
  llvm::Value* integer_to_integer(llvm::Value* value, Type to, Type from, bool saturate);
  llvm::Value* float_to_integer(llvm::Value* value, Type to, Rounding rounding);
  llvm::Value* round_to_integral(llvm::Value* value, Rounding rounding);
  llvm::Value* integer_to_float(llvm::Value* value, Type to, Type from, Rounding rounding);

  bool cvt_narrow(Decoded& i);  // codegen_narrow.cc; returns false for other formats
  void cvt_stochastic(Decoded& i);
  void cvt_tf32(Decoded& i, FloatMode mode);
  llvm::Value* saturate_half(llvm::Value* half, Type type);

  // --- Matrices of a warp (codegen_matrix.cc) ---
  struct Window {
    llvm::Value *address, *low, *high;  // i64
  };
  Window window_of(Decoded& i, const Operand& operand, Space space);
  llvm::Value* word_array(uint32_t words);
  llvm::Value* word_at(llvm::Value* array, uint32_t index);
  void store_words(Decoded& i, const Operand& operand, llvm::Value* array, uint32_t first, uint32_t words,
                   bool wide);
  void load_words(Decoded& i, const Operand& operand, llvm::Value* array, uint32_t words, bool wide);
  void multiply_matrices(Decoded& i, const MatrixOperation& operation);
  void mma(Decoded& i);
  void wmma(Decoded& i);
  void move_matrix(Decoded& i);
  void movmatrix(Decoded& i);

  // --- Caches and stacks (codegen_policy.cc) ---
  void createpolicy(Decoded& i);
  void alloca_(Decoded& i);
  void prepare_saved_stacks();
  void stacksave(Decoded& i);
  void stackrestore(Decoded& i);

  // --- Comparisons (codegen_compare.cc) ---
  llvm::Value* compare(Decoded& i, std::string_view op, Type type, llvm::Value* a, llvm::Value* b);
  llvm::Value* combine(Decoded& i, std::string_view op, llvm::Value* result, const Operand& with);
  void setp(Decoded& i);
  void set(Decoded& i);
  void selp(Decoded& i);
  void slct(Decoded& i);

  // --- Textures and surfaces (codegen_texture.cc) ---
  struct Fetch;
  Fetch take_fetch(Decoded& i, size_t operand, std::string_view geometry, Type coordinates);
  void store_input(const Fetch& fetch, uint32_t at, const Operand& operand, Type type);
  void store_inputs(Decoded& i, const Fetch& fetch, uint32_t at, const Operand& operand, Type type);
  llvm::Value* texture_value(const Operand& operand);
  void tex(Decoded& i);
  void tld4(Decoded& i);
  void finish_fetch(Decoded& i, Fetch& fetch, size_t next, Type result);
  void texture_query(Decoded& i);
  void suld(Decoded& i);
  void sust(Decoded& i);
  void sured(Decoded& i);
  void istypep(Decoded& i);
  uint32_t take_outside(Decoded& i);

  // --- Between threads (codegen_sync.cc) ---
  void bar(Decoded& i);
  void warp_barrier(Decoded& i);
  void vote(Decoded& i);
  void match(Decoded& i);
  void shfl(Decoded& i);
  void redux(Decoded& i);
  void elect(Decoded& i);
  llvm::Value* active_mask();
  void activemask(Decoded& i);
  void nanosleep(Decoded& i);

  ModuleCodegen& m_;
  const LinkedFunction& linked_;
  const ptx::Function& f_;
  const FunctionFacts& facts_;
  llvm::Function* function_;
  llvm::IRBuilder<> b_;
  llvm::IRBuilder<> entry_;        // inserts allocas and context loads at the start of the function
  llvm::Value* thread_ = nullptr;  // ThreadContext*
  llvm::Value* block_ = nullptr;   // BlockContext*
  llvm::Value* tid_[3] = {};
  llvm::Value* result_pointer_ = nullptr;  // memory of an aggregate result
  llvm::AllocaInst* carry_ = nullptr;
  llvm::AllocaInst* saved_stacks_ = nullptr;  // one per stacksave, null until it has run
  uint32_t saved_stack_count_ = 0, next_saved_stack_ = 0;
  std::vector<llvm::AllocaInst*> registers_;
  std::vector<llvm::AllocaInst*>
      base_offsets_;  // per register with a base: its offset from the variable's start
  std::unordered_map<uint32_t, Storage> storage_;
  std::unordered_map<uint64_t, llvm::Value*> fields_;  // context fields already loaded in the entry block
  std::map<std::tuple<uint32_t, uint64_t, Type>, llvm::Value*>
      parameters_;  // kernel parameters already loaded
  std::vector<llvm::BasicBlock*> label_blocks_;
  struct Temporaries {
    std::vector<llvm::AllocaInst*> memory;
    size_t used = 0;  // number of them in use by `instruction`
    uint32_t instruction = UINT32_MAX;
  };
  std::unordered_map<llvm::Type*, Temporaries> temporaries_;
  llvm::Value* parameter_base_ = nullptr;
  uint32_t index_ = 0;  // index of the instruction being translated
};

// Generates the IR of one kernel and of all functions that it reaches.
std::optional<CompileError> generate_kernel(const Image& image, const LinkedKernel& kernel,
                                            llvm::Module& module);
// Translates every function once to find unsupported code. Uses several threads for large images.
std::optional<CompileError> check_functions(const Image& image);

}  // namespace gpupool::softgpu
