// Parser: functions, that is signatures, scopes and statements. Operands are in operand_parser.cc.
#include <algorithm>

#include "server/softgpu/ptx/parser_impl.h"

namespace gpupool::softgpu::ptx {
namespace {

constexpr uint32_t kMaxScopeDepth = 64;
constexpr size_t kMaxModifiers = 24;
constexpr size_t kMaxParameters = 4096;
constexpr uint64_t kMaxRegisterIndex = 1ull << 31;

}  // namespace

void Parser::parse_parameters(std::vector<Variable>& out, bool allow_registers) {
  expect('(');
  while (!accept(')')) {
    if (out.size() >= kMaxParameters) fail("too many parameters");
    Space space = Space::param;
    if (allow_registers && accept_dotted("reg"))
      space = Space::reg;
    else if (!accept_dotted("param"))
      fail("expected .param before " + token_for_message());
    out.push_back(parse_type_and_name(Linkage::internal, parse_shape(space)));
    if (out.back().is_unsized)
      out.back().is_unsized = false;  // .param .b8 p[]: variable arguments, of which none are passed
    if (!token_.is(')')) expect(',');
  }
}

void Parser::parse_performance_directives(Function& function) {
  auto triple = [&](std::array<uint32_t, 3>& out) {
    out = {1, 1, 1};
    size_t i = 0;
    do {
      if (i == 3) fail("expected at most three numbers");
      out[i++] = static_cast<uint32_t>(expect_integer(UINT32_MAX));
    } while (accept(','));
  };
  while (token_.kind == TokenKind::dotted) {
    if (accept_dotted("maxntid"))
      triple(function.max_block);
    else if (accept_dotted("reqntid"))
      triple(function.required_block);
    else if (accept_dotted("maxnreg"))
      function.max_registers = static_cast<uint32_t>(expect_integer(UINT32_MAX));
    else if (accept_dotted("minnctapersm") || accept_dotted("maxnctapersm") ||
             accept_dotted("maxclusterrank") || accept_dotted("abi_preserve") ||
             accept_dotted("abi_preserve_control"))
      expect_integer(UINT32_MAX);
    else if (accept_dotted("reqnctapercluster"))
      triple(function.required_cluster);
    else if (accept_dotted("explicitcluster"))
      function.needs_cluster = true;
    else if (accept_dotted("blocksareclusters"))
      function.blocks_are_clusters = true;
    else if (accept_dotted("noreturn"))
      function.is_noreturn = true;
    else if (token_.text == "pragma" || token_.text == "loc")
      skip_debug_directive();
    else if (accept_dotted("attribute")) {
      Variable unused;
      parse_attribute(unused);
    } else {
      fail("unknown directive " + token_for_message());
    }
  }
}

Function Parser::parse_function(Linkage linkage, bool is_kernel) {
  Function function;
  function.linkage = linkage;
  function.is_kernel = is_kernel;
  if (accept_dotted("attribute")) {
    Variable unused;
    parse_attribute(unused);
  }
  if (token_.is('(')) parse_parameters(function.results, true);
  function.line = token_.line;
  function.name = function_name_ = expect_identifier();
  in_kernel_ = is_kernel;
  if (token_.is('(')) parse_parameters(function.parameters, !is_kernel);
  parse_performance_directives(function);
  if (accept(';')) return function;
  if (!token_.is('{')) fail("expected the body of " + std::string(function.name.substr(0, 200)));
  parse_body(function);
  return function;
}

void Parser::open_scope() {
  if (++depth_ > kMaxScopeDepth) fail("blocks are nested too deeply");
  Scope scope;
  scope.parent = scope_;
  scopes_.push_back(std::move(scope));
  scope_ = static_cast<uint32_t>(scopes_.size() - 1);
}

void Parser::close_scope() {
  scope_ = scopes_[scope_].parent;
  --depth_;
}

void Parser::parse_body(Function& function) {
  function_ = &function;
  function.has_body = true;
  scopes_.assign(1, Scope{});
  fixups_.clear();
  scope_ = 0;
  depth_ = 0;
  auto declare_all = [&](std::vector<Variable>& list) {
    for (Variable& variable : list) {
      if (variable.space == Space::reg) {
        if (variable.is_array) fail("an array cannot be a register", variable.line);
        variable.reg = add_register(variable.type);
        declare(variable.name, {Name::Kind::reg, variable.reg});
      }
      uint32_t index = static_cast<uint32_t>(function.variables.size());
      function.variables.push_back(variable);
      if (variable.space != Space::reg) declare(variable.name, {Name::Kind::variable, index});
    }
  };
  declare_all(function.results);
  declare_all(function.parameters);
  expect('{');
  open_scope();
  while (depth_ > 0) parse_statement();
  resolve_names();
  function_ = nullptr;
}

void Parser::parse_statement() {
  if (token_.kind == TokenKind::end) fail("missing } at the end of a function");
  if (accept(';')) return;
  if (accept('{')) return open_scope();
  if (accept('}')) return close_scope();
  if (token_.kind == TokenKind::dotted) return parse_body_directive();
  parse_instruction();
}

void Parser::parse_body_directive() {
  if (skip_debug_directive()) return;
  if (accept_dotted("reg")) return parse_registers();
  Linkage linkage = parse_linkage();
  auto space = token_.kind == TokenKind::dotted ? find_space(token_.text) : std::nullopt;
  if (!space) fail("unknown directive " + token_for_message());
  advance();
  std::vector<Variable> list;
  parse_declarations(list, linkage, *space);
  for (Variable& variable : list) {
    std::string_view name = variable.name;
    declare(name, {Name::Kind::variable, add_variable(std::move(variable))});
  }
}

uint32_t Parser::add_variable(Variable variable) {
  function_->variables.push_back(std::move(variable));
  return static_cast<uint32_t>(function_->variables.size() - 1);
}

uint32_t Parser::add_register(Type type) {
  function_->registers.push_back({type});
  return static_cast<uint32_t>(function_->registers.size() - 1);
}

void Parser::parse_registers() {
  Variable shape = parse_shape(Space::reg);
  if (shape.size != bytes_of(shape.type)) fail("vector registers are not supported");
  do {
    std::string_view name = expect_identifier();
    if (accept('<')) {
      uint64_t count = expect_integer(kMaxRegisterIndex);
      expect('>');
      if (!scopes_[scope_].ranges.emplace(name, RegisterRange{shape.type, count}).second)
        fail("registers " + std::string(name) + " are declared twice");
    } else {
      declare(name, {Name::Kind::reg, add_register(shape.type)});
    }
  } while (accept(','));
  expect(';');
}

void Parser::declare(std::string_view name, Name value) {
  if (!scopes_[scope_].names.emplace(name, value).second)
    fail("'" + std::string(name.substr(0, 200)) + "' is declared twice");
}

bool Parser::find_name(std::string_view name, uint32_t scope, Name& found) {
  // %r12 may belong to a range of registers; the register is created at its first use.
  size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  uint64_t number = 0;
  bool numbered = digits < name.size() && name.size() - digits <= 10 &&
                  (name[digits] != '0' || digits + 1 == name.size());
  if (numbered)
    for (char c : name.substr(digits)) number = number * 10 + static_cast<uint64_t>(c - '0');
  for (;; scope = scopes_[scope].parent) {
    Scope& s = scopes_[scope];
    if (auto it = s.names.find(name); it != s.names.end()) {
      found = it->second;
      return true;
    }
    if (numbered && !s.ranges.empty()) {
      auto range = s.ranges.find(name.substr(0, digits));
      if (range != s.ranges.end() && number < range->second.count) {
        found = {Name::Kind::reg, add_register(range->second.type)};
        s.names.emplace(name, found);
        return true;
      }
    }
    if (scope == 0) return false;
  }
}

uint32_t Parser::expect_register() {
  Name found;
  std::string_view name = expect_identifier();
  if (!find_name(name, scope_, found) || found.kind != Name::Kind::reg)
    fail("'" + std::string(name.substr(0, 200)) + "' is not a register");
  return found.index;
}

void Parser::parse_prototype(std::string_view name) {
  Prototype prototype;
  if (token_.is('(')) parse_parameters(prototype.results, true);
  expect_identifier();  // _
  if (token_.is('(')) parse_parameters(prototype.parameters, true);
  Function unused;
  parse_performance_directives(unused);
  expect(';');
  declare(name, {Name::Kind::prototype, static_cast<uint32_t>(function_->prototypes.size())});
  function_->prototypes.push_back(std::move(prototype));
}

// Parses the rest after "name:": a table of targets, a prototype, or nothing if it is a label.
void Parser::parse_labelled(std::string_view name, uint32_t line) {
  if (accept_dotted("callprototype")) return parse_prototype(name);
  if (accept_dotted("calltargets")) {  // any function of that signature may be called; checked at run time
    Prototype prototype;
    prototype.signature_of = expect_identifier();
    skip_statement();
    declare(name, {Name::Kind::prototype, static_cast<uint32_t>(function_->prototypes.size())});
    function_->prototypes.push_back(std::move(prototype));
    return;
  }
  if (accept_dotted("branchtargets")) {
    uint32_t list = static_cast<uint32_t>(function_->target_lists.size());
    declare(name, {Name::Kind::targets, list});
    // The labels are defined later: store them as operands until resolve_names() replaces them.
    Operand group;
    group.kind = Operand::Kind::list;
    std::vector<Operand> elements;
    do {
      Operand label;
      label.kind = Operand::Kind::symbol;
      label.name = expect_identifier();
      elements.push_back(label);
    } while (accept(','));
    expect(';');
    uint32_t first = static_cast<uint32_t>(function_->operand_pool.size());
    for (const Operand& element : elements) push(element);
    std::vector<uint32_t> placeholders;
    for (uint32_t i = 0; i < elements.size(); ++i) placeholders.push_back(first + i);
    function_->target_lists.push_back(std::move(placeholders));
    return;
  }
  uint32_t label = static_cast<uint32_t>(function_->labels.size());
  if (!scopes_[scope_].names.emplace(name, Name{Name::Kind::label, label}).second)
    fail("label '" + std::string(name.substr(0, 200)) + "' is defined twice", line);
  function_->labels.push_back(static_cast<uint32_t>(function_->code.size()));
}

void Parser::parse_instruction() {
  Instruction instruction;
  if (accept('@')) {
    if (token_.is('@')) {  // @@DWARF
      lexer_.skip_line();
      advance();
      return;
    }
    instruction.is_predicated = true;
    instruction.predicate_negated = accept('!');
    instruction.predicate = expect_register();
    if (function_->registers[instruction.predicate].type != Type::pred) fail("a guard must be a predicate");
  }
  uint32_t line = token_.line;
  const char* begin = token_.text.data();
  std::string_view opcode = expect_identifier();
  if (!instruction.is_predicated && accept(':')) return parse_labelled(opcode, line);
  instruction.opcode = opcode;
  instruction.line = line;
  instruction.first_modifier = static_cast<uint32_t>(function_->modifier_pool.size());
  while (token_.kind == TokenKind::dotted) {
    if (++instruction.modifier_count > kMaxModifiers) fail("too many modifiers");
    function_->modifier_pool.push_back(token_.text);
    advance();
  }
  std::vector<Operand> operands;
  while (!token_.is(';')) {
    if (operands.size() >= kMaxOperands) fail("too many operands");
    operands.push_back(parse_operand());
    if (!token_.is(';')) expect(',');
  }
  instruction.text = std::string_view(begin, static_cast<size_t>(text_.data() + previous_end_ - begin));
  expect(';');
  instruction.first_operand = static_cast<uint32_t>(function_->operand_pool.size());
  instruction.operand_count = static_cast<uint16_t>(operands.size());
  for (const Operand& operand : operands) push(operand);
  function_->code.push_back(instruction);
}

void Parser::resolve_names() {
  for (const Fixup& fixup : fixups_) {
    Operand& operand = function_->operand_pool[fixup.operand];
    Name found;
    if (!find_name(operand.name, fixup.scope, found)) continue;
    operand.index = found.index;
    if (found.kind == Name::Kind::label)
      operand.kind = Operand::Kind::label;
    else if (found.kind == Name::Kind::prototype)
      operand.kind = Operand::Kind::prototype;
    else if (found.kind == Name::Kind::targets)
      operand.kind = Operand::Kind::targets;
    else if (found.kind == Name::Kind::variable)
      operand.kind = Operand::Kind::variable;
    else
      operand.kind = Operand::Kind::reg;
  }
  for (auto& list : function_->target_lists)
    for (uint32_t& entry : list) {
      const Operand& operand = function_->operand_pool[entry];
      if (operand.kind != Operand::Kind::label)
        fail("branch target '" + std::string(operand.name.substr(0, 200)) + "' is not a label",
             function_->line);
      entry = operand.index;
    }
}

}  // namespace gpupool::softgpu::ptx
