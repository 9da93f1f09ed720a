#include "protocol/images/name.h"

// SHA256_Init and its siblings are deprecated in favour of EVP, which chooses algorithms at run time. Used
// directly, they link some 24 KiB into the client library and none of OpenSSL's providers.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>

namespace gpupool::image {
namespace {

class Sha256 {
 public:
  Sha256() { SHA256_Init(&state_); }
  void add(std::span<const std::byte> bytes) { SHA256_Update(&state_, bytes.data(), bytes.size()); }
  wire::ImageDigest result() {
    wire::ImageDigest out;
    SHA256_Final(out.data(), &state_);
    return out;
  }

 private:
  SHA256_CTX state_;
};

constexpr size_t kBlock = 256 * 1024;  // bytes; the block stays in the CPU cache between the two hashes

}  // namespace

wire::ImageDigest digest(std::span<const std::byte> bundle) {
  Sha256 hash;
  hash.add(bundle);
  return hash.result();
}

wire::ImageDigest proof(const Nonce& nonce, std::span<const std::byte> bundle) {
  Sha256 hash;
  hash.add(nonce);
  hash.add(bundle);
  return hash.result();
}

wire::ImageName name(const Nonce& nonce, std::span<const std::byte> bundle) {
  Sha256 plain;
  Sha256 proving;
  proving.add(nonce);
  for (size_t at = 0; at < bundle.size(); at += kBlock) {
    const auto block = bundle.subspan(at, std::min(kBlock, bundle.size() - at));
    plain.add(block);
    proving.add(block);
  }
  return {bundle.size(), plain.result(), proving.result()};
}

}  // namespace gpupool::image
