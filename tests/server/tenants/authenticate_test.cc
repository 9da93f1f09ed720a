#include "server/tenants/authenticate.h"

#include "common/token/token.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

const std::string kTokenOfA(64, 'a'), kTokenOfB(64, 'b'), kNobodysToken(64, 'c');

Tenant named_tenant(const std::string& name) {
  Tenant made;
  made.name = name;
  return made;
}

std::vector<Tenant> three() {
  Tenant a = named_tenant("a"), b = named_tenant("b"), c = named_tenant("c");
  a.tokens = {hash_token("another"), hash_token(kTokenOfA)};
  b.tokens = {hash_token(kTokenOfB)};
  b.certificates = {"b.example"};
  c.users = {1000};
  return {a, b, c};
}

std::string who(const Tenants& tenants, const Credentials& shown) {
  const auto found = authenticate(tenants, shown);
  if (found) return found->tenant->name;
  CHECK(found.error().code == ErrorCode::refused);
  return found.error().message;
}

}  // namespace

TEST_CASE("a client names its tenant if no tenant has credentials") {
  const Tenants one;
  CHECK(who(one, {}) == "default");
  CHECK(who(one, {.token = kTokenOfA}) == "default");
  CHECK(who(one, {.tenant = "x"}).find("no tenant with the name") != std::string::npos);
  const Tenants renamed({named_tenant("only")});
  CHECK(who(renamed, {}) == "only");
  const Tenants two({named_tenant("a"), named_tenant("b")});
  CHECK(who(two, {.tenant = "b"}) == "b");
  CHECK(who(two, {}).find("GPUPOOL_TENANT") != std::string::npos);
}

TEST_CASE("tokens and certificates and users authenticate a client") {
  const Tenants tenants(three());
  CHECK(who(tenants, {.token = kTokenOfA}) == "a");
  CHECK(who(tenants, {.tenant = "a", .token = kTokenOfA}) == "a");
  CHECK(who(tenants, {.token = kTokenOfB}) == "b");
  CHECK(who(tenants, {.certificate_names = {"x", "b.example"}}) == "b");
  CHECK(who(tenants, {.user = 1000}) == "c");
  CHECK(who(tenants, {.token = kTokenOfA, .certificate_names = {"b.example"}, .user = 1000}) == "a");
  CHECK(who(tenants, {.tenant = "c", .user = 1000}) == "c");
}

TEST_CASE("a refusal does not say what was wrong") {
  const Tenants tenants(three());
  const std::string nothing = who(tenants, {});
  CHECK(nothing.find("GPUPOOL_TOKEN_FILE") != std::string::npos);
  CHECK(who(tenants, {.user = 1001}) == nothing);
  CHECK(who(tenants, {.tenant = "a"}) == nothing);
  const std::string wrong = who(tenants, {.token = kNobodysToken});
  CHECK(wrong.find("authentication failed") != std::string::npos);
  CHECK(who(tenants, {.tenant = "a", .token = kTokenOfB}) == wrong);
  CHECK(who(tenants, {.tenant = "nobody", .token = kTokenOfB}) == wrong);
  CHECK(who(tenants, {.certificate_names = {"c"}}) == wrong);
  // A wrong token is refused even if the client's local user has a tenant, and so is a guessable one.
  CHECK(who(tenants, {.token = kNobodysToken, .user = 1000}) == wrong);
  CHECK(who(tenants, {.token = "another"}) == wrong);
}

TEST_CASE("the credential of an admitted client is kept and its revocation is detected") {
  Tenants tenants(three());
  const auto admitted = [&](const Credentials& shown) { return authenticate(tenants, shown)->by; };
  const Credential token = admitted({.token = kTokenOfA}),
                   certificate = admitted({.certificate_names = {"x", "b.example"}}),
                   user = admitted({.user = 1000});
  CHECK(token.text() == "token " + hash_text(hash_token(kTokenOfA)).substr(7, 8));
  CHECK(certificate.text() == "certificate b.example");
  CHECK(user.text() == "user 1000");
  CHECK(Credential().text().empty());
  CHECK(!revoked(tenants, "a", token));
  CHECK(!revoked(tenants, "b", certificate));
  CHECK(!revoked(tenants, "c", user));
  CHECK(revoked(tenants, "b", token));  // now a credential of another tenant
  CHECK(revoked(tenants, "a", {}));
  CHECK(!revoked(tenants, "n/lease", {.kind = Credential::Kind::lease}));
  auto changed = three();
  changed[0].retired_tokens = std::exchange(changed[0].tokens, {hash_token(kNobodysToken)});
  changed[1].certificates = {"x"};
  changed.pop_back();
  tenants.replace(changed);
  CHECK(!revoked(tenants, "a", token));
  CHECK(who(tenants, {.token = kTokenOfA}).find("authentication failed") != std::string::npos);
  CHECK(revoked(tenants, "b", certificate) ==
        "the certificate name that authenticated this session was removed from the server's configuration");
  CHECK(revoked(tenants, "c", user) == "tenant 'c' was removed from the server's configuration");
  const Tenants open;
  CHECK(!revoked(open, "default", {}));
  CHECK(revoked(open, "default", token));
}

TEST_CASE("a tenant with only retired tokens admits no client") {
  Tenant a = named_tenant("a");
  a.retired_tokens = {hash_token(kTokenOfA)};
  CHECK(check_tenants({a}));
  const Tenants tenants({a});
  CHECK(!tenants.serves_anonymous());
  CHECK(!authenticate(tenants, {}));
  CHECK(!authenticate(tenants, {.token = kTokenOfA}));
  a.tokens = a.retired_tokens;
  CHECK(!check_tenants({a}));
}
