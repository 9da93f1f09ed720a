// Parser: constant expressions.
#include "server/softgpu/ptx/parser_impl.h"

namespace gpupool::softgpu::ptx {
namespace {

constexpr int kMaxExpressionDepth = 64;

int precedence(const std::string_view op) {
  if (op == "*" || op == "/" || op == "%") return 10;
  if (op == "+" || op == "-") return 9;
  if (op == "<<" || op == ">>") return 8;
  if (op == "&") return 5;
  if (op == "^") return 4;
  if (op == "|") return 3;
  return 0;
}

}  // namespace

uint64_t Parser::integer_constant() {
  Constant constant = parse_constant();
  if (constant.is_real) fail("expected an integer");
  return constant.value;
}

Parser::Constant Parser::parse_constant(int depth) {
  return parse_binary(1, depth);
}

Parser::Constant Parser::parse_binary(int minimum, int depth) {
  if (depth > kMaxExpressionDepth) fail("an expression is nested too deeply");
  Constant left = parse_unary(depth);
  while (token_.kind == TokenKind::punctuation && !left.is_real) {
    std::string_view op = token_.text;
    if (op == "<" || op == ">") op = op == "<" ? "<<" : ">>";
    int level = precedence(op);
    if (level < minimum || level == 0) break;
    advance();
    if (op == "<<" || op == ">>") expect(op[0]);
    Constant right = parse_binary(level + 1, depth + 1);
    if (right.is_real) fail("expected an integer");
    uint64_t a = left.value, b = right.value;
    if ((op == "/" || op == "%") && b == 0) fail("division by zero in a constant");
    if (op == "*")
      a *= b;
    else if (op == "/")
      a = a / b;
    else if (op == "%")
      a = a % b;
    else if (op == "+")
      a += b;
    else if (op == "-")
      a -= b;
    else if (op == "<<")
      a = b > 63 ? 0 : a << b;
    else if (op == ">>")
      a = b > 63 ? 0 : a >> b;
    else if (op == "&")
      a &= b;
    else if (op == "^")
      a ^= b;
    else
      a |= b;
    left.value = a;
  }
  return left;
}

Parser::Constant Parser::parse_unary(int depth) {
  if (depth > kMaxExpressionDepth) fail("an expression is nested too deeply");
  Constant result;
  if (accept('-')) {
    result = parse_unary(depth + 1);
    if (result.is_real)
      result.value ^= result.is_single ? 1ull << 31 : 1ull << 63;
    else
      result.value = 0 - result.value;
    return result;
  }
  if (accept('+')) return parse_unary(depth + 1);
  if (token_.is('~') || token_.is('!')) {
    bool bitwise = token_.is('~');
    advance();
    result = parse_unary(depth + 1);
    if (result.is_real) fail("expected an integer");
    result.value = bitwise ? ~result.value : result.value == 0;
    return result;
  }
  if (accept('(')) {
    if (accept_dotted("s64") || accept_dotted("u64")) {
      expect(')');
      return parse_unary(depth + 1);
    }
    result = parse_binary(1, depth + 1);
    expect(')');
    return result;
  }
  if (token_.kind == TokenKind::identifier && token_.text == "WARP_SZ") {
    result.value = 32;
  } else if (token_.kind == TokenKind::integer || token_.kind == TokenKind::real) {
    result.is_real = token_.kind == TokenKind::real;
    result.is_single = token_.is_single;
    result.value = token_.value;
  } else {
    fail("expected a constant before " + token_for_message());
  }
  advance();
  return result;
}

}  // namespace gpupool::softgpu::ptx
