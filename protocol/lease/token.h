// A lease as the text that a client shows in Hello.token: made by the scheduler, checked by poold (lease.proto). No state, any
// thread. Texts are not trusted: bounded in size, and read only after the signature has been found good.
#pragma once
#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include "protocol/control/lease.pb.h"
#include "protocol/lease/key.h"
#include "protocol/wire/result.h"

namespace gpupool::lease {

constexpr std::string_view kTokenPrefix = "lease:";
constexpr std::chrono::milliseconds kClockSkew{30'000};
constexpr std::chrono::milliseconds kLongestLife{24 * 3'600'000};  // of a token, from issued_ms to expires_ms
constexpr size_t kMostTokenBytes = 24 * 1024;  // of text
constexpr int kMostShares = 64;                // of one lease on one node
constexpr size_t kIdBytes = 16;
constexpr size_t kBootBytes = 16;              // or none: for whichever process is there
constexpr size_t kLongestName = 64;            // a tenant's, a node's
constexpr uint32_t kWholeGpu = 1000;           // Share.compute_milli

inline bool is_token(std::string_view text) { return text.starts_with(kTokenPrefix); }

std::string encode_token(const SignedLease& lease);
// ErrorCode::malformed: it is no such text. Says nothing about the signature.
Result<SignedLease> parse_token(std::string_view text);

// ErrorCode::invalid: check_lease() would not take it on any node, and why.
Result<std::string> make_token(const Lease& lease, const SigningKey& key);

// The lease that `token` is, signed by one of `keys`, of the poold called `node`, valid at `now` (since 1970). Else
// ErrorCode::malformed or refused, with the reason for its holder.
Result<Lease> check_lease(std::string_view token, std::span<const PublicKey> keys, std::string_view node, std::chrono::milliseconds now);

// 1 to kLongestName letters, digits, '-', '_' or '.'.
bool is_name(std::string_view text);
// "GPU-" and the 36 characters of the 16 bytes; empty for any other number of bytes.
std::string gpu_uuid_text(std::string_view bytes);
// Lower-case hexadecimal.
std::string hexadecimal(std::string_view bytes);

}  // namespace gpupool::lease
