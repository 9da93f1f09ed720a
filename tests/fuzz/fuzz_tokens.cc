// Fuzzes authentication with arbitrary credentials against several configurations, and the parser of token
// hashes in a configuration.
//
// A client may only be admitted with the credential of the tenant that it gets, or by its name where no
// tenant has credentials, and what admitted it must be revoked exactly if another configuration would not
// admit it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "common/token/token.h"
#include "server/tenants/authenticate.h"
#include "server/tenants/tenants_file.h"
#include "tests/fuzz/input.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

const std::string kToken(kShortestToken, 't');

const Tenants* tenants_of(const std::string& text,
                          Tenants::Anonymous anonymous = Tenants::Anonymous::served) {
  auto read = read_tenants(toml::parse(text));
  if (!read) std::abort();
  return new Tenants(std::move(*read), anonymous);  // never freed
}

const Tenants* with_a_lease() {
  auto* const made = new Tenants(std::vector<Tenant>{}, Tenants::Anonymous::refused);
  Tenant leased;
  leased.name = "a";
  leased.leased = true;
  made->put_lease(std::move(leased));
  return made;
}

const Tenants* const kConfigurations[] = {
    tenants_of("[[tenant]]\nname = \"a\"\ntokens = [\"" + hash_text(hash_token(kToken)) + "\"]\n" +
               "[[tenant]]\nname = \"b\"\ncertificates = [\"host.example\"]\n" +
               "[[tenant]]\nname = \"c\"\nusers = [7]\n"),
    tenants_of(""),
    tenants_of("[[tenant]]\nname = \"a\"\n"),
    tenants_of("[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"b\"\n"),
    tenants_of("[[tenant]]\nname = \"a\"\nusers = [9]\n"),
    with_a_lease(),
};
constexpr size_t kWithCredentials = 0;  // of the configurations

// A credential admits its owner to the same tenant of another configuration, or it is revoked there.
void check_revoked(const Credentials& shown, const Admission& admission) {
  const std::string& name = admission.tenant->name;
  const bool credential = admission.by.kind != Credential::Kind::none;
  if (credential == admission.by.text().empty()) std::abort();
  for (const Tenants* const other : kConfigurations) {
    const auto reason = revoked(*other, name, admission.by);
    if (reason && reason->empty()) std::abort();
    Credentials again = shown;
    again.tenant = name;
    const auto there = authenticate(*other, again);
    if (there && there->by.kind == admission.by.kind && reason) std::abort();
    if (!other->find(name) && !reason) std::abort();
  }
}

// Only the credentials of a tenant admit to it.
void check_admission(const Credentials& shown, const std::string& name) {
  const bool has_token = shown.token == kToken;
  const bool has_certificate = std::find(shown.certificate_names.begin(), shown.certificate_names.end(),
                                         "host.example") != shown.certificate_names.end();
  const bool has_user = shown.user && *shown.user == 7;
  if (!((name == "a" && has_token) || (name == "b" && has_certificate) || (name == "c" && has_user)))
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gpupool::fuzz::Input input(data, size);
  const size_t which = input.below(std::size(kConfigurations));
  const Tenants& known = *kConfigurations[which];
  Credentials shown;
  shown.tenant = input.text();
  shown.token = input.below(4) == 0 ? kToken : input.text();
  for (uint32_t names = input.below(4); names > 0; --names) shown.certificate_names.push_back(input.text());
  if (input.below(2) == 1) shown.user = input.get<uint8_t>();
  const auto tenant = authenticate(known, shown);
  if (tenant) {
    const std::string& name = tenant->tenant->name;
    if (revoked(known, name, tenant->by) || tenant->tenant->leased) std::abort();
    if (!shown.tenant.empty() && shown.tenant != name) std::abort();
    if (which == kWithCredentials) check_admission(shown, name);
    check_revoked(shown, *tenant);
  } else if (tenant.error().message.empty()) {
    std::abort();
  }
  const std::string rest = input.rest();
  if (const auto hash = parse_token_hash(rest)) {
    const auto again = parse_token_hash(hash_text(*hash));
    if (!again || *again != *hash) std::abort();
  }
  return 0;
}
