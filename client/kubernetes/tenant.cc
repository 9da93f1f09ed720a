#include "client/kubernetes/tenant.h"

#include <fstream>
#include <optional>
#include <string_view>

#include "common/files/exposure.h"

namespace gpupool::kubernetes {
namespace {

constexpr int kForbidden = 403;  // status of HTTP

std::string trimmed(const std::string& text) {
  constexpr const char* kBlanks = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlanks);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// Decodes base 64, as values of Secrets have it. Empty: it is not base 64.
std::optional<std::string> decoded(const std::string& text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.find('='))) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xff);
  }
  return out;
}

// Returns the token in the namespace's Secret; nullopt: there is no Secret.
Result<std::optional<std::string>> secret_of(const ApiServer& api, const TenantSettings& settings,
                                             const std::string& space) {
  const std::string name = "secret " + space + "/" + settings.secret;
  const auto reply = api.get("/api/v1/namespaces/" + escaped(space) + "/secrets/" + escaped(settings.secret));
  if (!reply) return reply.error();
  if (reply->says_missing("secrets", settings.secret)) return std::optional<std::string>();
  // Not taken for a missing Secret: the default token is another tenant's.
  if (reply->status == kForbidden) {
    return Error{ErrorCode::refused,
                 "gpupool may not read the " + name +
                     ", so the namespace has no tenant; packaging/kubernetes/make-roles.sh "
                     "makes the Role that it needs there"};
  }
  if (!reply->succeeded())
    return Error{ErrorCode::unavailable, "cannot read the " + name + ": " + reply->reason()};
  const auto token = decoded(text_member(reply->body, {"data", "token"}));
  if (!token || trimmed(*token).empty())
    return Error{ErrorCode::invalid, "the " + name + " has no token in its key 'token'"};
  return std::optional(trimmed(*token));
}

Result<std::string> default_token(const TenantSettings& settings) {
  if (settings.default_token_file.empty()) return std::string();
  return read_token(settings.default_token_file);
}

}  // namespace

Result<std::string> read_token(const std::string& path) {
  if (const auto checked = files::check_secret(path); !checked) return checked.error();
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  if (trimmed(line).empty())
    return Error{ErrorCode::invalid, path + " has no token in its first line, or cannot be read"};
  return trimmed(line);
}

Result<TenantToken> token_of(const ApiServer& api, const TenantSettings& settings, const std::string& space) {
  const auto own = secret_of(api, settings, space);
  if (!own) return own.error();
  if (own->has_value()) return TenantToken{**own, true};
  const auto standard = default_token(settings);
  if (!standard) return standard.error();
  return TenantToken{*standard, false};
}

Result<std::string> renewed_token(const ApiServer& api, const TenantSettings& settings,
                                  const std::string& space, bool of_namespace) {
  if (!of_namespace) return default_token(settings);
  const auto own = secret_of(api, settings, space);
  if (!own) return own.error();
  return own->value_or("");
}

}  // namespace gpupool::kubernetes
