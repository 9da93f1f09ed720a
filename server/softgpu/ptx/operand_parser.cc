// Parser: operands of instructions.
#include "server/softgpu/ptx/parser_impl.h"

namespace gpupool::softgpu::ptx {

uint32_t Parser::push(Operand operand) {
  uint32_t index = static_cast<uint32_t>(function_->operand_pool.size());
  if (operand.kind == Operand::Kind::symbol) fixups_.push_back({index, scope_});
  function_->operand_pool.push_back(operand);
  return index;
}

Operand Parser::parse_group(char close, Operand::Kind kind) {
  std::vector<Operand> elements;
  while (!accept(close)) {
    if (elements.size() >= kMaxOperands) fail("too many operands");
    if (token_.is('{') || token_.is('(') || token_.is('[')) fail("operands are nested too deeply");
    elements.push_back(parse_operand());
    if (!token_.is(close)) expect(',');
  }
  Operand group;
  group.kind = kind;
  group.first = static_cast<uint32_t>(function_->operand_pool.size());
  group.count = static_cast<uint32_t>(elements.size());
  for (const Operand& element : elements) push(element);
  return group;
}

Operand Parser::parse_address() {
  Operand base;
  Operand address;
  address.kind = Operand::Kind::address;
  if (token_.kind == TokenKind::identifier) {
    base = parse_name_operand(expect_identifier());
    if (!base.part.empty()) fail("part of a register cannot be an address");
    address.value = base.value;
    base.value = 0;
    if (base.kind == Operand::Kind::reg && token_.is('+')) {
      advance();
      address.value = static_cast<int64_t>(integer_constant());
    } else if (base.kind == Operand::Kind::reg && token_.is('-')) {
      address.value = static_cast<int64_t>(integer_constant());
    }
  } else {
    base.kind = Operand::Kind::integer;
    base.value = static_cast<int64_t>(integer_constant());
  }
  if (token_.is(',')) return parse_fetch(base, address.value);
  expect(']');
  address.first = push(base);
  return address;
}

// Parses the rest after "[a": the coordinates of a texture, surface or tensor.
Operand Parser::parse_fetch(Operand base, int64_t offset) {
  base.value += offset;
  std::vector<Operand> elements{base};
  while (accept(',')) {
    if (elements.size() >= kMaxOperands) fail("too many operands");
    if (token_.is('[') || token_.is('(')) fail("operands are nested too deeply");
    elements.push_back(parse_operand());
  }
  expect(']');
  Operand fetch;
  fetch.kind = Operand::Kind::fetch;
  fetch.first = static_cast<uint32_t>(function_->operand_pool.size());
  fetch.count = static_cast<uint32_t>(elements.size());
  for (const Operand& element : elements) push(element);
  return fetch;
}

Operand Parser::parse_name_operand(std::string_view name) {
  Operand operand;
  if (name == "_") return operand;
  Name found;
  if (!find_name(name, scope_, found)) {
    if (name[0] == '%') {
      operand.kind = Operand::Kind::special;
      operand.name = name;
      if (token_.kind == TokenKind::dotted && token_.text.size() == 1) {
        operand.component = token_.text[0];
        advance();
      }
      return operand;
    }
    operand.kind = Operand::Kind::symbol;  // or a label defined later; resolve_names() decides
    operand.name = name;
  } else {
    operand.index = found.index;
    switch (found.kind) {
      case Name::Kind::reg: operand.kind = Operand::Kind::reg; break;
      case Name::Kind::variable: operand.kind = Operand::Kind::variable; break;
      case Name::Kind::label: operand.kind = Operand::Kind::label; break;
      case Name::Kind::prototype: operand.kind = Operand::Kind::prototype; break;
      case Name::Kind::targets: operand.kind = Operand::Kind::targets; break;
    }
    operand.name = name;
    if (found.kind == Name::Kind::reg && token_.kind == TokenKind::dotted) {
      operand.part = token_.text;
      advance();
    }
  }
  if (operand.kind == Operand::Kind::symbol || operand.kind == Operand::Kind::variable) {
    if (token_.is('[')) {
      parse_element(operand);
    } else if (token_.is('+')) {
      advance();
      operand.value = static_cast<int64_t>(integer_constant());
    } else if (token_.is('-')) {
      operand.value = static_cast<int64_t>(integer_constant());
    }
  }
  return operand;
}

// array[3]: the index counts scalar elements, regardless of the declaration's dimensions and vector width.
void Parser::parse_element(Operand& array) {
  const std::string shown_name = "'" + std::string(array.name.substr(0, 200)) + "'";
  uint32_t element_bytes = 0;
  if (array.kind == Operand::Kind::variable) {
    const Variable& variable = function_->variables[array.index];
    if (variable.is_array) element_bytes = bytes_of(variable.type);
  } else if (const auto found = module_arrays_.find(array.name); found != module_arrays_.end()) {
    element_bytes = found->second;
  }
  if (element_bytes == 0) fail(shown_name + " is not an array declared before its use");
  expect('[');
  if (token_.kind == TokenKind::identifier && token_.text != "WARP_SZ") {
    fail("the element of " + shown_name + " must be a constant; compute its address in a register");
  }
  array.value = static_cast<int64_t>(integer_constant() * element_bytes);
  array.is_element = true;
  expect(']');
}

Operand Parser::parse_operand() {
  if (accept('[')) return parse_address();
  if (accept('{')) {
    Operand vector = parse_group('}', Operand::Kind::vector);
    if (!accept('|')) return vector;
    // tex: the predicate that receives whether the texels are resident.
    Operand second = parse_name_operand(expect_identifier());
    Operand pair;
    pair.kind = Operand::Kind::pair;
    pair.count = 2;
    pair.first = push(vector);
    push(second);
    return pair;
  }
  if (accept('(')) return parse_group(')', Operand::Kind::list);
  if (token_.is('!')) {
    advance();
    if (token_.kind != TokenKind::identifier) fail("expected a predicate before " + token_for_message());
    Operand operand = parse_name_operand(expect_identifier());
    operand.negated = true;
    return operand;
  }
  if (token_.kind == TokenKind::identifier && token_.text != "WARP_SZ") {
    Operand operand = parse_name_operand(expect_identifier());
    if (!accept('|')) return operand;
    Operand pair;
    Operand second = parse_name_operand(expect_identifier());
    pair.kind = Operand::Kind::pair;
    pair.count = 2;
    pair.first = push(operand);
    push(second);
    return pair;
  }
  if (token_.is('-') && lexer_.at_name()) {
    advance();
    Operand operand = parse_name_operand(expect_identifier());
    operand.is_minus = true;
    return operand;
  }
  Constant constant = parse_constant();
  Operand operand;
  operand.kind = constant.is_real ? Operand::Kind::real : Operand::Kind::integer;
  operand.is_single = constant.is_single;
  operand.value = static_cast<int64_t>(constant.value);
  return operand;
}

}  // namespace gpupool::softgpu::ptx
