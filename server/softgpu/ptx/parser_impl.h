// The recursive-descent parser behind parse(). One object per file, used by one thread. Reports errors by
// throwing SyntaxError, which parse() catches.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "server/softgpu/ptx/lexer.h"
#include "server/softgpu/ptx/parser.h"

namespace gpupool::softgpu::ptx {

constexpr size_t kMaxOperands = 512;  // per instruction or group

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), lexer_(text) { advance(); }
  File parse_file();

 private:
  struct Name {
    enum class Kind : uint8_t { reg, variable, label, prototype, targets } kind;
    uint32_t index;
  };
  struct RegisterRange {  // .reg .b32 %r<100>
    Type type;
    uint64_t count;
  };
  struct Scope {
    uint32_t parent = 0;
    std::unordered_map<std::string_view, Name> names;
    std::unordered_map<std::string_view, RegisterRange> ranges;
  };
  struct Fixup {
    uint32_t operand, scope;
  };
  struct Constant {
    bool is_real = false;
    bool is_single = false;
    uint64_t value = 0;
  };

  [[noreturn]] void fail(std::string message) const;
  [[noreturn]] void fail(std::string message, uint32_t line) const;
  std::string token_for_message() const;  // the current token, for messages

  // Tokens.
  void advance();
  bool accept(char c);
  bool accept_dotted(std::string_view word);
  void expect(char c);
  std::string_view expect_identifier();
  uint64_t expect_integer(uint64_t limit);

  // Directives (parser.cc).
  void parse_version(File& file);
  void parse_target(File& file);
  void skip_block();
  void skip_statement();
  bool parse_register_limit(File& file);
  bool skip_debug_directive();
  Linkage parse_linkage();
  void parse_declarations(std::vector<Variable>& out, Linkage linkage, Space space);
  Variable parse_type_and_name(Linkage linkage, Variable shape);
  Variable parse_shape(Space space);
  void parse_attribute(Variable& variable);
  void parse_initialisers(Variable& variable, int depth);
  Initialiser parse_initialiser();
  Constant parse_constant(int depth = 0);
  Constant parse_binary(int minimum, int depth);
  Constant parse_unary(int depth);
  uint64_t integer_constant();

  // Functions (function_parser.cc).
  Function parse_function(Linkage linkage, bool is_kernel);
  void parse_parameters(std::vector<Variable>& out, bool allow_registers);
  void parse_performance_directives(Function& function);
  void parse_body(Function& function);
  void parse_statement();
  void parse_body_directive();
  void parse_registers();
  void parse_labelled(std::string_view name, uint32_t line);
  void parse_prototype(std::string_view name);
  void parse_instruction();
  Operand parse_operand();
  Operand parse_name_operand(std::string_view name);
  void parse_element(Operand& array);
  Operand parse_address();
  Operand parse_fetch(Operand base, int64_t offset);
  Operand parse_group(char close, Operand::Kind kind);
  uint32_t push(Operand operand);
  void declare(std::string_view name, Name value);
  bool find_name(std::string_view name, uint32_t scope, Name& found);
  uint32_t add_register(Type type);
  uint32_t expect_register();
  uint32_t add_variable(Variable variable);
  void open_scope();
  void close_scope();
  void resolve_names();

  std::string_view text_;
  Lexer lexer_;
  Token token_;
  size_t previous_end_ = 0;  // end of the last consumed token, as an offset into text_
  Function* function_ = nullptr;
  // variables outside functions: element size in bytes
  std::unordered_map<std::string_view, uint32_t> module_arrays_;
  std::string_view function_name_;  // function being parsed, for messages; empty: none
  bool in_kernel_ = false;
  std::vector<Scope> scopes_;
  std::vector<Fixup> fixups_;
  uint32_t scope_ = 0;
  uint32_t depth_ = 0;
};

}  // namespace gpupool::softgpu::ptx
