#include "protocol/lease/token.h"

#include <algorithm>
#include <set>

#include "protocol/lease/base64url.h"

namespace gpupool::lease {
namespace {

// Limit for a GPU's memory in bytes, and for bytes per second.
constexpr uint64_t kMostBytes = uint64_t{1} << 50;
constexpr int64_t kLatestTime = int64_t{1} << 50;  // milliseconds since 1970; a sum of two does not overflow
constexpr uint32_t kMostSessions = 1'000'000;
constexpr size_t kUuidText = 40;
constexpr std::string_view kSignedPrefix = "gpupool lease 1\n";

Error malformed(const std::string& why) {
  return {ErrorCode::malformed, "the lease token " + why};
}
Error refused(const std::string& why) {
  return {ErrorCode::refused, "the lease token " + why};
}

std::string signed_text(const std::string& lease) {
  return std::string(kSignedPrefix) + lease;
}

bool is_gpu_uuid(std::string_view text) {
  if (text.size() != kUuidText || !text.starts_with("GPU-")) return false;
  for (size_t i = 4; i < text.size(); ++i) {
    const bool dash = i == 12 || i == 17 || i == 22 || i == 27;
    const bool digit = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    if (dash ? text[i] != '-' : !digit) return false;
  }
  return true;
}

std::string check_shares(const Lease& lease) {
  if (lease.shares_size() == 0) return "has no GPU";
  if (lease.shares_size() > kMostShares) return "has more than " + std::to_string(kMostShares) + " GPUs";
  std::set<std::string_view> seen;
  for (const Share& share : lease.shares()) {
    if (!is_gpu_uuid(share.gpu_uuid())) return "has an invalid GPU UUID";
    if (!seen.insert(share.gpu_uuid()).second) return "has the same GPU twice";
    if (share.compute_milli() < 1 || share.compute_milli() > kWholeGpu)
      return "has a compute share outside 1 to 1000 thousandths";
    if (share.memory_bytes() > kMostBytes) return "has an invalid amount of GPU memory";
  }
  return {};
}

// Returns why no node could accept the lease at any time, or an empty string.
std::string check_contents(const Lease& lease) {
  if (lease.id().size() != kIdBytes) return "has an invalid id (must be 16 bytes)";
  if (!lease.boot().empty() && lease.boot().size() != kBootBytes)
    return "has an invalid boot id (must be 16 bytes)";
  if (!is_name(lease.tenant())) return "has an invalid tenant name";
  if (!is_name(lease.node())) return "has an invalid node name";
  if (lease.issued_ms() < 0 || lease.expires_ms() <= lease.issued_ms() || lease.expires_ms() > kLatestTime) {
    return "has invalid times of issue and expiry";
  }
  if (lease.expires_ms() - lease.issued_ms() > kLongestLife.count()) return "is valid for more than a day";
  if (!Mode_IsValid(lease.mode())) return "has an unknown mode";
  if (!Priority_IsValid(lease.priority())) return "has an unknown priority";
  if (lease.to_device_bytes_per_second() > kMostBytes || lease.to_host_bytes_per_second() > kMostBytes) {
    return "has an invalid bandwidth limit";
  }
  if (lease.sessions() > kMostSessions) return "has an invalid limit of sessions";
  return check_shares(lease);
}

std::string seconds(std::chrono::milliseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

bool is_name(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= kLongestName && std::all_of(text.begin(), text.end(), fits);
}

std::string hexadecimal(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

std::string from_hexadecimal(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string bytes;
  if (text.size() % 2 != 0) return bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return {};
    bytes.push_back(static_cast<char>(high * 16 + low));
  }
  return bytes;
}

std::string encode_token(const SignedLease& lease) {
  return std::string(kTokenPrefix) + to_base64url(lease.SerializeAsString());
}

Result<SignedLease> parse_token(std::string_view text) {
  if (!is_token(text)) return malformed("does not begin with \"lease:\"");
  if (text.size() > kMostTokenBytes) return malformed("is too long");
  const auto bytes = from_base64url(text.substr(kTokenPrefix.size()));
  SignedLease lease;
  if (!bytes || !lease.ParseFromString(*bytes) || lease.lease().empty()) {
    return malformed("is damaged; check that it was copied completely");
  }
  return lease;
}

Result<std::string> make_token(const Lease& lease, const SigningKey& key) {
  if (const std::string wrong = check_contents(lease); !wrong.empty())
    return Error{ErrorCode::invalid, "the lease token " + wrong};
  SignedLease out;
  out.set_lease(lease.SerializeAsString());
  out.set_signature(key.sign(signed_text(out.lease())));
  out.set_key_id(key.public_key().id());
  if (out.signature().empty()) return Error{ErrorCode::unavailable, "OpenSSL cannot sign"};
  return encode_token(out);
}

Result<Lease> check_lease(std::string_view token, std::span<const PublicKey> keys, std::string_view node,
                          std::chrono::milliseconds now) {
  const auto parsed = parse_token(token);
  if (!parsed) return parsed.error();
  const auto key = std::find_if(keys.begin(), keys.end(),
                                [&](const PublicKey& one) { return one.id() == parsed->key_id(); });
  if (key == keys.end()) return refused("is signed with a key that is not configured on this server");
  if (!key->verify(signed_text(parsed->lease()), parsed->signature()))
    return refused("has an invalid signature");
  Lease lease;
  if (!lease.ParseFromString(parsed->lease())) return malformed("is signed but cannot be parsed");
  if (const std::string wrong = check_contents(lease); !wrong.empty()) return refused(wrong);
  if (lease.node() != node) return refused("is for the server '" + lease.node() + "', not for this one");
  const std::chrono::milliseconds issued(lease.issued_ms()), expires(lease.expires_ms());
  if (issued > now + kClockSkew) {
    return refused("was issued " + seconds(issued - now) +
                   " in the future: the clocks of this server and of the scheduler differ");
  }
  if (now > expires + kClockSkew) return refused("expired " + seconds(now - expires) + " ago");
  return lease;
}

}  // namespace gpupool::lease
