// Fuzzes lease tokens from clients. The input is also signed with the fuzzer's own key, so that the lease
// behind a valid signature is parsed as well.
#include <cstddef>
#include <cstdint>
#include <string>

#include "protocol/lease/token.h"

using namespace gpupool::lease;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const SigningKey key = *SigningKey::make();
  static const PublicKey keys[] = {key.public_key()};
  constexpr std::chrono::milliseconds kNow{1'800'000'000'000};
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto parsed = parse_token(text)) {
    const auto again = parse_token(encode_token(*parsed));
    if (!again || again->lease() != parsed->lease() || again->signature() != parsed->signature())
      __builtin_trap();
  }
  if (check_lease(text, keys, "gpu-1", kNow)) __builtin_trap();  // the input is not signed

  // Signing takes most of the time, so most of what no lease can be parsed from is not signed.
  if (!Lease().ParseFromString(text) && size % 16 != 0) return 0;
  SignedLease made;
  made.set_lease(text);
  made.set_signature(key.sign("gpupool lease 1\n" + text));
  made.set_key_id(key.public_key().id());
  if (const auto lease = check_lease(encode_token(made), keys, "gpu-1", kNow)) {
    if (lease->shares_size() < 1 || lease->shares_size() > kMostShares || !is_name(lease->tenant()) ||
        lease->node() != "gpu-1")
      __builtin_trap();
    if (!make_token(*lease, key)) __builtin_trap();
  }
  return 0;
}
