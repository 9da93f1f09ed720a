// Tests keys of copies between servers and proofs of possession: each is valid for one copy, one connection
// and one side, and identifies nothing to parties without the key.
#include "protocol/peers/proof.h"

#include <cstring>
#include <set>
#include <string>

#include "tests/support/catch.h"

using namespace gpupool;

namespace {

const std::string kToken(32, 't');
constexpr std::array<uint8_t, 16> kSession{1, 2, 3}, kOther{1, 2, 4};

wire::PeerNonce nonce(uint8_t value) {
  wire::PeerNonce nonce;
  nonce.fill(value);
  return nonce;
}

std::string hex(const wire::PeerMac& mac) {
  std::string text;
  for (const uint8_t byte : mac) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace

TEST_CASE("keys and proofs are the HMACs that docs/wire-format.md defines") {
  // Computed by Python: hmac.new(b"t" * 32, b"gpupool copy to the device 2" + struct.pack("<Q", 7), "sha256")
  const wire::CopyKey key = peers::copy_key(kToken, 7);
  CHECK(hex(key) == "c4f51d1a665b1a03ca2c8aa1f45af79e53b15983e0753a93f7c2f20de00b6af5");
  CHECK(hex(peers::prove(key, peers::Side::connecting, peers::Channel::plain, nonce(1), nonce(2))) ==
        "f2b848f473c9a9bb1f24e2bdd8ddce9c6947248f06406a378781a91dd53352cd");
  CHECK(hex(peers::prove(key, peers::Side::accepting, peers::Channel::plain, nonce(1), nonce(2))) ==
        "a9770a027cf31f6a995681bfdc806dcd9e44cebee3ce2c0cd459614ffe16e90f");
  CHECK(hex(peers::prove(key, peers::Side::connecting, peers::Channel::encrypted, nonce(1), nonce(2))) ==
        "928cdb28b14419f40e90516af9183cc17b2d5d3b2de008063a691689706feb90");
  CHECK(hex(peers::prove(key, peers::Side::accepting, peers::Channel::encrypted, nonce(1), nonce(2))) ==
        "920e3044145d4a1f4d2dadf01f68554d47793cbea4bba6031ea942df09e01adf");
  CHECK(hex(peers::channel_key(key, nonce(1), nonce(2))) ==
        "890b22eb041f73936e08a3f4ee593d3972e5f8989264786ce9f664c76548d536");
}

TEST_CASE("each copy of each session has a different key") {
  const wire::CopyKey key = peers::copy_key(kToken, 7);
  CHECK(peers::same(key, peers::copy_key(kToken, 7)));
  CHECK_FALSE(peers::same(key, peers::copy_key(kToken, 8)));
  CHECK_FALSE(peers::same(key, peers::copy_key(std::string(32, 'u'), 7)));
  CHECK(std::memcmp(key.data(), kToken.data(), key.size()) != 0);
}

TEST_CASE("a proof is valid for one key and one side and one connection, as is a channel's key") {
  const wire::CopyKey key = peers::copy_key(kToken, 7), other = peers::copy_key(kToken, 8);
  using enum peers::Side;
  std::set<wire::PeerMac> proofs;
  for (const auto& of : {key, other}) {
    for (const auto side : {connecting, accepting}) {
      for (const auto& [first, second] : {std::pair{1, 2}, {2, 1}, {1, 3}, {3, 2}}) {
        for (const auto channel : {peers::Channel::plain, peers::Channel::encrypted}) {
          proofs.insert(peers::prove(of, side, channel, nonce(static_cast<uint8_t>(first)),
                                     nonce(static_cast<uint8_t>(second))));
        }
        proofs.insert(
            peers::channel_key(of, nonce(static_cast<uint8_t>(first)), nonce(static_cast<uint8_t>(second))));
      }
    }
  }
  CHECK(proofs.size() == 32 + 8);
}

TEST_CASE("only the holder of a session's id can match a hello to its session and copy") {
  for (const uint64_t copy : {uint64_t{0}, uint64_t{7}, ~uint64_t{0}}) {
    const wire::PeerHello hello = peers::make_hello(nonce(9), kSession, copy);
    uint64_t found = copy + 1;
    CHECK(peers::names(hello, kSession, &found));
    CHECK(found == copy);
    CHECK_FALSE(peers::names(hello, kOther, &found));
    CHECK(hello.session != kSession);
    CHECK(hello.copy != copy);
    const wire::PeerHello again = peers::make_hello(nonce(10), kSession, copy);
    CHECK(again.session != hello.session);
    CHECK(again.copy != hello.copy);
  }
}

TEST_CASE("a comparison finds a difference in any bit") {
  const wire::PeerMac mac = nonce(5);
  for (size_t bit = 0; bit < mac.size() * 8; ++bit) {
    wire::PeerMac other = mac;
    other[bit / 8] = static_cast<uint8_t>(other[bit / 8] ^ (1u << bit % 8));
    CHECK_FALSE(peers::same(mac, other));
  }
  CHECK(peers::same(mac, mac));
}
