// Fuzzes authentication with arbitrary credentials against tenants that have tokens, certificates and users,
// and the parser of token hashes in a configuration.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "common/token/token.h"
#include "server/tenants/authenticate.h"
#include "server/tenants/tenants_file.h"
#include "tests/fuzz/input.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

const std::string kToken(kShortestToken, 't');

const Tenants* tenants() {
  const std::string text =
      "[[tenant]]\nname = \"a\"\ntokens = [\"" + hash_text(hash_token(kToken)) + "\"]\n" +
      "[[tenant]]\nname = \"b\"\ncertificates = [\"host.example\"]\n[[tenant]]\nname = \"c\"\nusers = [7]\n";
  auto read = read_tenants(toml::parse(text));
  if (!read) std::abort();
  return new Tenants(std::move(*read));  // never freed
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tenants& known = *tenants();
  gpupool::fuzz::Input input(data, size);
  Credentials shown;
  shown.tenant = input.text();
  shown.token = input.below(4) == 0 ? kToken : input.text();
  for (uint32_t names = input.below(4); names > 0; --names) shown.certificate_names.push_back(input.text());
  if (input.below(2) == 1) shown.user = input.get<uint8_t>();
  const auto tenant = authenticate(known, shown);
  const bool has_token = shown.token == kToken;
  const bool has_certificate = std::find(shown.certificate_names.begin(), shown.certificate_names.end(),
                                         "host.example") != shown.certificate_names.end();
  const bool has_user = shown.user && *shown.user == 7;
  if (tenant) {
    const std::string& name = tenant->tenant->name;
    if (gpupool::server::revoked(known, name, tenant->by)) std::abort();
    if (!((name == "a" && has_token) || (name == "b" && has_certificate) || (name == "c" && has_user)))
      std::abort();
    if (!shown.tenant.empty() && shown.tenant != name) std::abort();
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
