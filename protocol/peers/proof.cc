#include "protocol/peers/proof.h"

// The functions that are deprecated in favour of EVP, for the reason given in protocol/images/name.cc.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace gpupool::peers {
namespace {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256() { SHA256_Init(&state_); }
  void add(const void* bytes, size_t size) { SHA256_Update(&state_, bytes, size); }
  Digest result() {
    Digest out;
    SHA256_Final(out.data(), &state_);
    return out;
  }

 private:
  SHA256_CTX state_;
};

// RFC 2104, for keys of 32 bytes or less.
class Hmac {
 public:
  Hmac(const void* key, size_t size) {
    std::memcpy(block_.data(), key, std::min(size, block_.size()));
    inner_.add(padded(0x36).data(), block_.size());
  }
  void add(const void* bytes, size_t size) { inner_.add(bytes, size); }
  Digest result() {
    Sha256 outer;
    outer.add(padded(0x5c).data(), block_.size());
    const Digest inner = inner_.result();
    outer.add(inner.data(), inner.size());
    return outer.result();
  }

 private:
  using Block = std::array<uint8_t, 64>;
  Block padded(uint8_t pad) const {
    Block out = block_;
    for (uint8_t& byte : out) byte ^= pad;
    return out;
  }
  Block block_{};
  Sha256 inner_;
};

// HMAC of both nonces under the copy's key.
Digest mac_of(const wire::CopyKey& key, std::string_view purpose, const wire::PeerNonce& connecting,
              const wire::PeerNonce& accepting) {
  Hmac mac(key.data(), key.size());
  mac.add(purpose.data(), purpose.size());
  mac.add(connecting.data(), connecting.size());
  mac.add(accepting.data(), accepting.size());
  return mac.result();
}

// HMAC of a hello's nonce under the session's id: `session` stands for the id in the hello, `copy` is XORed
// with the copy's number.
struct Mask {
  std::array<uint8_t, 16> session;
  uint64_t copy;
};

Mask mask_of(const wire::PeerNonce& nonce, std::span<const uint8_t, 16> session_id) {
  constexpr std::string_view kPurpose = "gpupool peer session 2";
  Hmac mac(session_id.data(), session_id.size());
  mac.add(kPurpose.data(), kPurpose.size());
  mac.add(nonce.data(), nonce.size());
  const Digest digest = mac.result();
  Mask mask;
  std::memcpy(mask.session.data(), digest.data(), mask.session.size());
  std::memcpy(&mask.copy, digest.data() + mask.session.size(), sizeof mask.copy);
  return mask;
}

}  // namespace

wire::CopyKey copy_key(std::string_view bulk_token, uint64_t copy) {
  constexpr std::string_view kPurpose = "gpupool copy to the device 2";
  Hmac mac(bulk_token.data(), bulk_token.size());
  mac.add(kPurpose.data(), kPurpose.size());
  mac.add(&copy, sizeof copy);
  return mac.result();
}

wire::PeerMac prove(const wire::CopyKey& key, Side side, Channel channel, const wire::PeerNonce& connecting,
                    const wire::PeerNonce& accepting) {
  const bool connects = side == Side::connecting;
  const std::string_view purpose =
      channel == Channel::plain ? (connects ? "gpupool peer connects 2" : "gpupool peer accepts 2")
                                : (connects ? "gpupool peer connects tls 2" : "gpupool peer accepts tls 2");
  return mac_of(key, purpose, connecting, accepting);
}

wire::PeerMac channel_key(const wire::CopyKey& key, const wire::PeerNonce& connecting,
                          const wire::PeerNonce& accepting) {
  return mac_of(key, "gpupool peer encrypts 2", connecting, accepting);
}

wire::PeerHello make_hello(const wire::PeerNonce& nonce, std::span<const uint8_t, 16> session_id,
                           uint64_t copy) {
  const Mask mask = mask_of(nonce, session_id);
  return {.nonce = nonce, .session = mask.session, .copy = copy ^ mask.copy, .rdma = 0, .reserved = 0};
}

bool names(const wire::PeerHello& hello, std::span<const uint8_t, 16> session_id, uint64_t* copy) {
  const Mask mask = mask_of(hello.nonce, session_id);
  *copy = hello.copy ^ mask.copy;
  return mask.session == hello.session;
}

wire::PeerMac prove_resume(std::string_view resume_key, uint64_t link, uint64_t attempt, uint64_t received) {
  constexpr std::string_view kPurpose = "gpupool resume 1";
  Hmac mac(resume_key.data(), resume_key.size());
  mac.add(kPurpose.data(), kPurpose.size());
  mac.add(&link, sizeof link);
  mac.add(&attempt, sizeof attempt);
  mac.add(&received, sizeof received);
  return mac.result();
}

bool proves_resume(std::string_view proof, std::string_view resume_key, uint64_t link, uint64_t attempt,
                   uint64_t received) {
  wire::PeerMac shown;
  if (proof.size() != shown.size()) return false;
  std::memcpy(shown.data(), proof.data(), shown.size());
  return same(shown, prove_resume(resume_key, link, attempt, received));
}

bool same(std::span<const uint8_t, 32> a, std::span<const uint8_t, 32> b) {
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace gpupool::peers
