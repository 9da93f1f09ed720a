// Encodes a lease as the text that a client sends in Hello.token: the scheduler makes it, poold checks it
// (lease.proto). No state, any thread. Tokens are untrusted: their size is bounded, and a lease is parsed
// only after its signature has been verified.
#pragma once
#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include "common/result.h"
#include "protocol/control/lease.pb.h"
#include "protocol/lease/key.h"

namespace gpupool::lease {

constexpr std::string_view kTokenPrefix = "lease:";
constexpr std::chrono::milliseconds kClockSkew{30'000};  // tolerated difference to the scheduler's clock
constexpr std::chrono::milliseconds kLongestLife{24 * 3'600'000};  // of a token, from issued_ms to expires_ms
constexpr size_t kMostTokenBytes = 24 * 1024;                      // of a token's text
constexpr int kMostShares = 64;                                    // GPUs of one lease on one node
constexpr size_t kIdBytes = 16;
constexpr size_t kBootBytes = 16;     // Lease.boot, unless it is empty: valid for any poold process
constexpr size_t kLongestName = 64;   // of a tenant or node
constexpr uint32_t kWholeGpu = 1000;  // Share.compute_milli

inline bool is_token(std::string_view text) {
  return text.starts_with(kTokenPrefix);
}

std::string encode_token(const SignedLease& lease);
// ErrorCode::malformed: `text` does not encode a SignedLease. Does not verify the signature.
Result<SignedLease> parse_token(std::string_view text);

// Signs a lease. ErrorCode::invalid, with the reason, if check_lease() would reject it on every node.
Result<std::string> make_token(const Lease& lease, const SigningKey& key);

// Returns the token's lease if it is signed by one of `keys`, names the poold `node`, and is valid at `now`
// (since 1970), give or take kClockSkew. Else ErrorCode::malformed or refused, with a reason for the user.
Result<Lease> check_lease(std::string_view token, std::span<const PublicKey> keys, std::string_view node,
                          std::chrono::milliseconds now);

// True for 1 to kLongestName letters, digits, '-', '_' or '.'.
bool is_name(std::string_view text);
// Lower-case hexadecimal, and back; other text returns no bytes.
std::string hexadecimal(std::string_view bytes);
std::string from_hexadecimal(std::string_view text);

}  // namespace gpupool::lease
