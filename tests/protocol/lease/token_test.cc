#include "protocol/lease/token.h"

#include <functional>

#include "common/text/gpu_uuid.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"

using namespace gpupool::lease;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kNow{1'800'000'000'000};
constexpr milliseconds kMinute{60'000};

const SigningKey& key() {
  static const SigningKey made = *SigningKey::make();
  return made;
}

Lease a_lease() {
  Lease lease;
  lease.set_id("0123456789abcdef");
  lease.set_serial(3);
  lease.set_tenant("physics");
  lease.set_node("gpu-1");
  lease.set_issued_ms(kNow.count());
  lease.set_expires_ms((kNow + kMinute).count());
  lease.set_priority(NORMAL);
  Share& share = *lease.add_shares();
  share.set_gpu_uuid("GPU-00112233-4455-6677-8899-aabbccddeeff");
  share.set_compute_milli(500);
  share.set_memory_bytes(uint64_t{8} << 30);
  return lease;
}

std::string sign_anything(const Lease& lease, const SigningKey& with = key()) {
  SignedLease out;
  out.set_lease(lease.SerializeAsString());
  out.set_signature(with.sign("gpupool lease 1\n" + out.lease()));
  out.set_key_id(with.public_key().id());
  return encode_token(out);
}

gpupool::Result<Lease> check(const std::string& token, milliseconds now = kNow,
                             const std::string& node = "gpu-1") {
  const PublicKey keys[] = {key().public_key()};
  return check_lease(token, keys, node, now);
}

std::string why(const std::string& token, milliseconds now = kNow, const std::string& node = "gpu-1") {
  const auto checked = check(token, now, node);
  return checked ? "" : checked.error().message;
}

std::string why(const std::function<void(Lease&)>& change) {
  Lease lease = a_lease();
  change(lease);
  const auto made = make_token(lease, key());
  const std::string reason = why(sign_anything(lease));
  CHECK(made.ok() == reason.empty());  // make_token() rejects the same leases
  return reason;
}

}  // namespace

TEST_CASE("a token carries its lease", "[lease]") {
  const auto token = make_token(a_lease(), key());
  REQUIRE(token);
  CHECK(is_token(*token));
  CHECK(token->find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_:") ==
        std::string::npos);
  const auto lease = check(*token);
  REQUIRE(lease);
  CHECK(lease->SerializeAsString() == a_lease().SerializeAsString());
}

TEST_CASE("a token is valid only on its node and in its lifetime and with a known key", "[lease]") {
  const std::string token = *make_token(a_lease(), key());
  CHECK_THAT(why(token, kNow, "gpu-2"), Catch::Matchers::ContainsSubstring("'gpu-1'"));
  CHECK(check(token, kNow + kMinute + kClockSkew));
  CHECK_THAT(why(token, kNow + kMinute + kClockSkew + milliseconds(1)),
             Catch::Matchers::ContainsSubstring("expired 30 s ago"));
  CHECK(check(token, kNow - kClockSkew));
  CHECK_THAT(why(token, kNow - kClockSkew - milliseconds(1)),
             Catch::Matchers::ContainsSubstring("in the future"));
  CHECK_FALSE(check(token, milliseconds(0)));

  const auto other = SigningKey::make();
  REQUIRE(other);
  CHECK_THAT(why(sign_anything(a_lease(), *other)), Catch::Matchers::ContainsSubstring("is not configured"));
  // Signed by an unknown key, with a known key's id.
  SignedLease forged;
  forged.set_lease(a_lease().SerializeAsString());
  forged.set_signature(other->sign("gpupool lease 1\n" + forged.lease()));
  forged.set_key_id(key().public_key().id());
  CHECK_THAT(why(encode_token(forged)), Catch::Matchers::ContainsSubstring("invalid signature"));
  forged.set_signature(key().sign(forged.lease()));  // signed without the lease prefix
  CHECK_THAT(why(encode_token(forged)), Catch::Matchers::ContainsSubstring("invalid signature"));
  CHECK_FALSE(check_lease(token, {}, "gpu-1", kNow));
  const PublicKey both[] = {other->public_key(), key().public_key()};
  CHECK(check_lease(token, both, "gpu-1", kNow));
}

TEST_CASE("an altered token is refused", "[lease]") {
  Lease lease = a_lease();
  const auto parsed = parse_token(*make_token(lease, key()));
  REQUIRE(parsed);
  lease.mutable_shares(0)->set_compute_milli(1000);
  SignedLease altered = *parsed;
  altered.set_lease(lease.SerializeAsString());
  CHECK_THAT(why(encode_token(altered)), Catch::Matchers::ContainsSubstring("invalid signature"));
  const std::string token = *make_token(a_lease(), key());
  for (size_t at = kTokenPrefix.size(); at < token.size(); ++at) {
    std::string other = token;
    other[at] = other[at] == 'A' ? 'B' : 'A';
    CHECK_FALSE(check(other));
  }
}

TEST_CASE("rejects a truncated or extended token", "[lease]") {
  const std::string token = *make_token(a_lease(), key());
  for (size_t size = 0; size < token.size(); ++size) CHECK_FALSE(check(token.substr(0, size)));
  CHECK_FALSE(check(token + "A"));
  CHECK_FALSE(check(token + "AAAA"));
  CHECK_FALSE(check(token + "\n"));
  CHECK_THAT(why(std::string(kTokenPrefix) + std::string(kMostTokenBytes, 'A')),
             Catch::Matchers::ContainsSubstring("too long"));
  CHECK_THAT(why("secret"), Catch::Matchers::ContainsSubstring("does not begin"));
  CHECK_THAT(why("lease:"), Catch::Matchers::ContainsSubstring("damaged"));
}

TEST_CASE("rejects a signed lease with invalid contents", "[lease]") {
  using Catch::Matchers::ContainsSubstring;
  CHECK(why([](Lease&) {}).empty());
  CHECK(why([](Lease& lease) { lease.mutable_shares(0)->set_compute_milli(1); }).empty());
  CHECK(why([](Lease& lease) { lease.mutable_shares(0)->set_memory_bytes(0); }).empty());
  CHECK_THAT(why([](Lease& lease) { lease.set_id("short"); }), ContainsSubstring("invalid id"));
  CHECK_THAT(why([](Lease& lease) { lease.set_boot("short"); }), ContainsSubstring("invalid boot id"));
  CHECK(why([](Lease& lease) { lease.set_boot("0123456789abcdef"); }).empty());
  CHECK_THAT(why([](Lease& lease) { lease.set_tenant("a/b"); }), ContainsSubstring("tenant"));
  CHECK_THAT(why([](Lease& lease) { lease.set_tenant(""); }), ContainsSubstring("tenant"));
  CHECK_THAT(why([](Lease& lease) { lease.set_node(""); }), ContainsSubstring("node"));
  CHECK_THAT(why([](Lease& lease) { lease.set_expires_ms(lease.issued_ms()); }), ContainsSubstring("times"));
  CHECK_THAT(why([](Lease& lease) { lease.set_expires_ms(INT64_MAX); }), ContainsSubstring("times"));
  CHECK_THAT(why([](Lease& lease) { lease.set_expires_ms(lease.issued_ms() + kLongestLife.count() + 1); }),
             ContainsSubstring("more than a day"));
  CHECK_THAT(why([](Lease& lease) { lease.set_issued_ms(-1); }), ContainsSubstring("times"));
  CHECK_THAT(why([](Lease& lease) { lease.set_mode(static_cast<Mode>(7)); }), ContainsSubstring("mode"));
  CHECK_THAT(why([](Lease& lease) { lease.set_priority(static_cast<Priority>(7)); }),
             ContainsSubstring("priority"));
  CHECK_THAT(why([](Lease& lease) { lease.set_to_host_bytes_per_second(UINT64_MAX); }),
             ContainsSubstring("bandwidth"));
  CHECK_THAT(why([](Lease& lease) { lease.set_sessions(UINT32_MAX); }), ContainsSubstring("sessions"));
  CHECK_THAT(why([](Lease& lease) { lease.clear_shares(); }), ContainsSubstring("no GPU"));
  CHECK_THAT(why([](Lease& lease) { *lease.add_shares() = lease.shares(0); }), ContainsSubstring("twice"));
  CHECK_THAT(why([](Lease& lease) { lease.mutable_shares(0)->set_compute_milli(0); }),
             ContainsSubstring("1 to 1000"));
  CHECK_THAT(why([](Lease& lease) { lease.mutable_shares(0)->set_compute_milli(1001); }),
             ContainsSubstring("1 to 1000"));
  CHECK_THAT(why([](Lease& lease) { lease.mutable_shares(0)->set_memory_bytes(UINT64_MAX); }),
             ContainsSubstring("memory"));
  CHECK_THAT(why([](Lease& lease) {
               lease.mutable_shares(0)->set_gpu_uuid("GPU-00112233-4455-6677-8899-aabbccddeefg");
             }),
             ContainsSubstring("invalid GPU UUID"));
  CHECK_THAT(why([](Lease& lease) { lease.mutable_shares(0)->set_gpu_uuid("0"); }),
             ContainsSubstring("invalid GPU UUID"));
}

TEST_CASE("accepts a lease of 64 GPUs and rejects one of 65", "[lease]") {
  Lease lease = a_lease();
  lease.clear_shares();
  for (int i = 0; i <= kMostShares; ++i) {
    std::string bytes(16, '\0');
    bytes[15] = static_cast<char>(i);
    Share& share = *lease.add_shares();
    share.set_gpu_uuid(gpupool::gpu_uuid_text(bytes));
    share.set_compute_milli(1000);
    share.set_memory_bytes(uint64_t{80} << 30);
  }
  CHECK_THAT(why(sign_anything(lease)), Catch::Matchers::ContainsSubstring("more than 64"));
  lease.mutable_shares()->RemoveLast();
  CHECK(check(sign_anything(lease)));
}

TEST_CASE("a GPU's UUID is written as nvidia-smi prints it", "[lease]") {
  CHECK(gpupool::gpu_uuid_text(std::string("\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff",
                                           16)) == "GPU-00112233-4455-6677-8899-aabbccddeeff");
  CHECK(gpupool::gpu_uuid_text("short").empty());
}
