// Parser: directives of a file, that is version, target, variables and their initialisers. Functions are in
// function_parser.cc.
#include "server/softgpu/ptx/parser.h"

#include <bit>
#include <charconv>

#include "server/softgpu/ptx/parser_impl.h"

namespace gpupool::softgpu::ptx {
namespace {

constexpr std::string_view kRegisterLimitPragma = "softgpu maxnreg ";
constexpr int kMaxInitialiserDepth = 64;
constexpr uint64_t kMaxVariableBytes = 1ull << 40;
constexpr uint64_t kMaxAlignment = 4096;

Opaque find_opaque(std::string_view name) {
  if (name == "texref") return Opaque::texture;
  if (name == "surfref") return Opaque::surface;
  if (name == "samplerref") return Opaque::sampler;
  return Opaque::none;
}

}  // namespace

void Parser::fail(std::string message) const {
  fail(std::move(message), token_.line);
}
void Parser::fail(std::string message, uint32_t line) const {
  throw SyntaxError{std::move(message), line, std::string(function_name_), in_kernel_};
}

std::string Parser::token_for_message() const {
  if (token_.kind == TokenKind::end) return "the end of the text";
  return "'" + std::string(token_.text.substr(0, 60)) + "'";
}

void Parser::advance() {
  if (token_.kind != TokenKind::end || token_.text.data())
    previous_end_ = static_cast<size_t>(token_.text.data() + token_.text.size() - text_.data());
  token_ = lexer_.next();
}

bool Parser::accept(char c) {
  if (!token_.is(c)) return false;
  advance();
  return true;
}

bool Parser::accept_dotted(std::string_view word) {
  if (token_.kind != TokenKind::dotted || token_.text != word) return false;
  advance();
  return true;
}

void Parser::expect(char c) {
  if (!accept(c)) fail(std::string("expected '") + c + "' before " + token_for_message());
}

std::string_view Parser::expect_identifier() {
  if (token_.kind != TokenKind::identifier) fail("expected a name before " + token_for_message());
  std::string_view name = token_.text;
  advance();
  return name;
}

uint64_t Parser::expect_integer(uint64_t limit) {
  if (token_.kind != TokenKind::integer || token_.value > limit)
    fail("expected a number up to " + std::to_string(limit));
  uint64_t value = token_.value;
  advance();
  return value;
}

void Parser::skip_statement() {
  while (token_.kind != TokenKind::end && !token_.is(';')) advance();
  expect(';');
}

void Parser::skip_block() {
  while (token_.kind != TokenKind::end && !token_.is('{')) advance();
  expect('{');
  for (uint64_t depth = 1; depth > 0; advance()) {
    if (token_.kind == TokenKind::end) fail("missing } at the end of a block");
    if (token_.is('{')) ++depth;
    if (token_.is('}')) --depth;
  }
}

bool Parser::skip_debug_directive() {
  if (token_.is('@')) {  // @@DWARF, written by old compilers
    lexer_.skip_line();
    advance();
    return true;
  }
  if (token_.kind != TokenKind::dotted) return false;
  if (token_.text == "loc" || token_.text == "file") {
    lexer_.skip_line();
    advance();
  } else if (token_.text == "section") {
    skip_block();
  } else if (token_.text == "pragma") {
    skip_statement();
  } else {
    return false;
  }
  return true;
}

// Returns false for other pragmas, without consuming them.
bool Parser::parse_register_limit(File& file) {
  if (token_.kind != TokenKind::dotted || token_.text != "pragma") return false;
  Lexer ahead = lexer_;
  const Token text = ahead.next();
  if (text.kind != TokenKind::string || !text.text.starts_with(kRegisterLimitPragma)) return false;
  const std::string_view digits = text.text.substr(kRegisterLimitPragma.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), file.max_registers);
  skip_statement();
  return true;
}

void Parser::parse_version(File& file) {
  // "9.0" is one real token; its text holds the version.
  std::string_view text = token_.text;
  size_t dot = text.find('.');
  if (token_.kind != TokenKind::real || dot == std::string_view::npos || dot > 3) fail("expected a version");
  for (char c : text.substr(0, dot))
    file.version_major = file.version_major * 10 + static_cast<uint32_t>(c - '0');
  for (char c : text.substr(dot + 1, 3)) {
    if (c < '0' || c > '9') fail("expected a version");
    file.version_minor = file.version_minor * 10 + static_cast<uint32_t>(c - '0');
  }
  advance();
}

void Parser::parse_target(File& file) {
  do {
    std::string_view name = expect_identifier();
    if (name.substr(0, 3) != "sm_") continue;  // texmode_unified, debug, map_f64_to_f32
    uint32_t number = 0;
    size_t at = 3;
    for (; at < name.size() && name[at] >= '0' && name[at] <= '9' && at < 8; ++at)
      number = number * 10 + static_cast<uint32_t>(name[at] - '0');
    std::string_view suffix = name.substr(at);
    if (number == 0 || !(suffix.empty() || suffix == "a" || suffix == "f"))
      fail("unknown target " + std::string(name));
    file.target = number;
  } while (accept(','));
}

Linkage Parser::parse_linkage() {
  if (accept_dotted("visible")) return Linkage::visible;
  if (accept_dotted("extern")) return Linkage::external;
  if (accept_dotted("weak")) return Linkage::weak;
  if (accept_dotted("common")) return Linkage::common;
  return Linkage::internal;
}

File Parser::parse_file() {
  File file;
  while (token_.kind != TokenKind::end) {
    function_name_ = {};
    if (parse_register_limit(file) || skip_debug_directive() || accept(';')) continue;
    if (token_.kind != TokenKind::dotted) fail("expected a directive before " + token_for_message());
    if (accept_dotted("version")) {
      parse_version(file);
      continue;
    }
    if (accept_dotted("target")) {
      parse_target(file);
      continue;
    }
    if (accept_dotted("address_size")) {
      if (expect_integer(64) != 64) fail("only .address_size 64 is supported");
      continue;
    }
    if (accept_dotted("alias")) {
      Alias alias;
      alias.name = expect_identifier();
      expect(',');
      alias.target = expect_identifier();
      expect(';');
      file.aliases.push_back(alias);
      continue;
    }
    if (file.version_major == 0) fail("the text does not begin with .version");
    Linkage linkage = parse_linkage();
    if (accept_dotted("entry")) {
      file.functions.push_back(parse_function(linkage, true));
    } else if (accept_dotted("func")) {
      file.functions.push_back(parse_function(linkage, false));
    } else if (auto space = token_.kind == TokenKind::dotted ? find_space(token_.text) : std::nullopt;
               space && *space != Space::param && *space != Space::local) {
      advance();
      const size_t before = file.variables.size();
      parse_declarations(file.variables, linkage, *space);
      for (size_t i = before; i < file.variables.size(); ++i) {
        const Variable& variable = file.variables[i];
        if (variable.is_array) module_arrays_.emplace(variable.name, bytes_of(variable.type));
      }
    } else {
      fail("unknown directive " + token_for_message());
    }
  }
  if (file.version_major == 0) fail("the text does not begin with .version");
  return file;
}

void Parser::parse_attribute(Variable& variable) {
  expect('(');
  for (int depth = 1; depth > 0; advance()) {
    if (token_.kind == TokenKind::end) fail("missing ) after an attribute");
    if (token_.is('(')) ++depth;
    if (token_.is(')')) --depth;
    if (token_.kind == TokenKind::dotted && token_.text == "managed") variable.is_managed = true;
  }
}

// Parses the part of a declaration before the name: .align, .attribute, vector width, type and, for kernel
// parameters, the space and alignment of the pointee.
Variable Parser::parse_shape(Space space) {
  Variable shape;
  shape.space = space;
  shape.line = token_.line;
  uint32_t width = 1;
  uint64_t alignment = 0;
  bool has_type = false;
  while (token_.kind == TokenKind::dotted) {
    if (accept_dotted("align")) {
      alignment = expect_integer(kMaxAlignment);
      if (!std::has_single_bit(alignment)) fail("an alignment must be a power of two");
    } else if (accept_dotted("attribute")) {
      parse_attribute(shape);
    } else if (accept_dotted("v2")) {
      width = 2;
    } else if (accept_dotted("v4")) {
      width = 4;
    } else if (accept_dotted("ptr")) {  // .ptr .global .align 16 describes the pointee; ignored
      if (token_.kind == TokenKind::dotted && find_space(token_.text)) advance();
      if (accept_dotted("align")) expect_integer(UINT32_MAX);
    } else if (auto opaque = find_opaque(token_.text); opaque != Opaque::none && !has_type) {
      shape.opaque = opaque;
      shape.type = Type::b64;
      has_type = true;
      advance();
    } else if (auto type = find_type(token_.text); type && !has_type) {
      shape.type = *type;
      has_type = true;
      advance();
    } else {
      fail("unknown type or attribute " + token_for_message());
    }
  }
  if (!has_type) fail("expected a type before " + token_for_message());
  if (shape.type == Type::pred && space != Space::reg) fail("predicates can only be registers");
  shape.size = uint64_t{bytes_of(shape.type)} * width;
  shape.alignment = static_cast<uint32_t>(alignment ? alignment : shape.size);
  return shape;
}

Variable Parser::parse_type_and_name(Linkage linkage, Variable variable) {
  variable.linkage = linkage;
  variable.line = token_.line;
  variable.name = expect_identifier();
  while (accept('[')) {
    variable.is_array = true;
    if (accept(']')) {
      variable.is_unsized = true;
      variable.size = 0;
      continue;
    }
    uint64_t count = integer_constant();
    if (count != 0 && variable.size > kMaxVariableBytes / count) fail("a variable is too large");
    variable.size *= count;
    expect(']');
  }
  return variable;
}

void Parser::parse_declarations(std::vector<Variable>& out, Linkage linkage, Space space) {
  Variable shape = parse_shape(space);
  do {
    Variable variable = parse_type_and_name(linkage, shape);
    if (variable.opaque == Opaque::sampler || (variable.opaque != Opaque::none && space != Space::global)) {
      fail("independent samplers are not supported; textures and surfaces must be global variables",
           variable.line);
    }
    if (accept('=')) {
      if (variable.opaque != Opaque::none)
        fail("textures and surfaces with initial values are not supported");
      parse_initialisers(variable, 0);
      uint64_t bytes = bytes_of(variable.type);
      if (variable.is_unsized) {
        variable.size = bytes * variable.initialisers.size();
        variable.is_unsized = false;
      }
      if (variable.initialisers.size() * bytes > variable.size) fail("too many initialisers", variable.line);
    }
    bool dynamic = linkage == Linkage::external;
    if (variable.is_unsized && !dynamic) fail("an array without a size must be extern", variable.line);
    out.push_back(std::move(variable));
  } while (accept(','));
  expect(';');
}

void Parser::parse_initialisers(Variable& variable, int depth) {
  if (depth > kMaxInitialiserDepth) fail("initialisers are nested too deeply");
  if (!accept('{')) {
    variable.initialisers.push_back(parse_initialiser());
    return;
  }
  // Inner braces of a multi-dimensional array are taken to hold complete rows, as compilers write them.
  while (!accept('}')) {
    parse_initialisers(variable, depth + 1);
    if (!token_.is('}')) expect(',');
  }
}

Initialiser Parser::parse_initialiser() {
  Initialiser value;
  auto symbol = [&] {
    value.kind = Initialiser::Kind::symbol;
    value.symbol = expect_identifier();
    if (value.symbol == "generic" && accept('(')) {
      value.symbol = expect_identifier();
      expect(')');
    }
    if (token_.is('+') || token_.is('-')) {
      bool minus = token_.is('-');
      advance();
      uint64_t offset = parse_binary(10, 0).value;
      value.value = minus ? 0 - offset : offset;
    }
  };
  if (token_.kind == TokenKind::identifier && token_.text != "WARP_SZ") {
    symbol();
    return value;
  }
  Constant constant = parse_constant();
  if (!constant.is_real && accept('(')) {  // 0xFF00(symbol)
    symbol();
    value.mask = constant.value;
    expect(')');
    if (value.mask == 0) fail("a mask must not be zero");
    return value;
  }
  value.kind = constant.is_real ? Initialiser::Kind::real : Initialiser::Kind::integer;
  value.is_single = constant.is_single;
  value.value = constant.value;
  return value;
}

std::string register_limit_pragma(uint32_t registers) {
  return "\n.pragma \"" + std::string(kRegisterLimitPragma) + std::to_string(registers) + "\";\n";
}

std::variant<File, SyntaxError> parse(std::string_view text) {
  try {
    return Parser(text).parse_file();
  } catch (SyntaxError& error) {
    return std::move(error);
  }
}

}  // namespace gpupool::softgpu::ptx
