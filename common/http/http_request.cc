#include "common/http/http_request.h"

#include <arpa/inet.h>

#include <algorithm>

namespace gpupool {
namespace {

constexpr std::string_view kEndOfLine = "\r\n";
constexpr std::string_view kEndOfHead = "\r\n\r\n";

bool is_token_character(char c) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         kMarks.find(c) != kMarks.npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_character);
}

bool is_value(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c == '\t' || (c >= ' ' && c != 0x7f) || c < 0; });
}

bool is_target(std::string_view text) {
  return text.starts_with('/') &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

char lower(char c) {
  return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
}

// Compares without regard to case.
bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char one, char other) { return lower(one) == lower(other); });
}

std::string_view cut(std::string_view& rest, std::string_view separator) {
  const size_t at = std::min(rest.find(separator), rest.size());
  const std::string_view before = rest.substr(0, at);
  rest.remove_prefix(std::min(at + separator.size(), rest.size()));
  return before;
}

HttpRequest refuse(int status) {
  return {.refusal = status};
}

std::string_view trim(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

// Returns the status with which to refuse the request, or 0. Sets `host` and `authorization`.
int check_fields(std::string_view fields, bool wants_host, HttpRequest& request) {
  int hosts = 0, authorizations = 0;
  while (!fields.empty()) {
    std::string_view value = cut(fields, kEndOfLine);
    if (value.find(':') == value.npos) return 400;
    const std::string_view name = cut(value, ":");
    if (!is_token(name) || !is_value(value)) return 400;
    if (same_name(name, "host")) {
      ++hosts;
      request.host = trim(value);
    }
    if (same_name(name, "authorization")) {
      ++authorizations;
      request.authorization = trim(value);
    }
    // Requests with a body are refused.
    if (same_name(name, "transfer-encoding")) return 400;
    if (same_name(name, "content-length") && value.find_first_not_of(" \t0") != value.npos) return 413;
  }
  return hosts > 1 || authorizations > 1 || (wants_host && hosts == 0) ? 400 : 0;
}

// Removes the port. Returns false if there is one that is no number.
bool remove_port(std::string_view& host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  if (colon == host.npos || (bracket != host.npos && colon < bracket)) return true;
  if (host.find_first_not_of("0123456789", colon + 1) != host.npos) return false;
  host = host.substr(0, colon);
  return true;
}

}  // namespace

std::optional<HttpRequest> read_request(std::string_view bytes) {
  const size_t end = bytes.substr(0, kMostRequestHeadBytes).find(kEndOfHead);
  if (end == bytes.npos) {
    if (bytes.size() >= kMostRequestHeadBytes) return refuse(431);
    return std::nullopt;
  }
  std::string_view rest = bytes.substr(0, end + kEndOfLine.size());
  std::string_view line = cut(rest, kEndOfLine);
  const std::string_view method = cut(line, " ");
  std::string_view target = cut(line, " ");
  if (!is_token(method) || !is_target(target) || line.size() != 8 || !line.starts_with("HTTP/"))
    return refuse(400);
  if (line != "HTTP/1.1" && line != "HTTP/1.0") return refuse(505);
  HttpRequest request{.head = method == "HEAD", .path = std::string(cut(target, "?"))};
  if (const int status = check_fields(rest, line == "HTTP/1.1", request)) return refuse(status);
  if (method != "GET" && method != "HEAD") return refuse(405);
  return request;
}

bool is_local_host(std::string_view host) {
  if (!remove_port(host)) return false;
  if (same_name(host, "localhost")) return true;
  unsigned char address[16];
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    return ::inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), address) == 1;
  return ::inet_pton(AF_INET, std::string(host).c_str(), address) == 1;
}

bool is_allowed_host(std::string_view host, const std::vector<std::string>& names) {
  if (is_local_host(host)) return true;
  if (!remove_port(host)) return false;
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return same_name(host, name); });
}

std::string bearer_token(std::string_view authorization) {
  const std::string_view scheme = cut(authorization, " ");
  return same_name(scheme, "bearer") ? std::string(trim(authorization)) : "";
}

}  // namespace gpupool
