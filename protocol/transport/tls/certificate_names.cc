// Reads the names in a client's certificate. They are later compared as whole strings, so ambiguous names are
// left out.
#include <cstring>

#include "protocol/transport/tls/openssl.h"
#include "protocol/transport/tls/stream.h"

namespace gpupool::transport::tls {
namespace {

// Skips names with a NUL byte: "admin\0.example" must not be taken for "admin".
void add(std::vector<std::string>& names, const unsigned char* text, int bytes) {
  if (!text || bytes <= 0 || std::memchr(text, 0, static_cast<size_t>(bytes))) return;
  names.emplace_back(reinterpret_cast<const char*>(text), static_cast<size_t>(bytes));
}

void add_common_name(std::vector<std::string>& names, X509* certificate) {
  const Openssl& ssl = openssl();
  auto* const subject = ssl.X509_get_subject_name(certificate);
  const int at = ssl.X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  // Ambiguous: several common names.
  if (at < 0 || ssl.X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0) return;
  unsigned char* text = nullptr;
  const int bytes =
      ssl.ASN1_STRING_to_UTF8(&text, ssl.X509_NAME_ENTRY_get_data(ssl.X509_NAME_get_entry(subject, at)));
  add(names, text, bytes);
  if (bytes >= 0) ssl.CRYPTO_free(text, __FILE__, __LINE__);
}

void add_alternative_names(std::vector<std::string>& names, X509* certificate) {
  const Openssl& ssl = openssl();
  auto* const all =
      static_cast<GENERAL_NAMES*>(ssl.X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  if (!all) return;
  const auto* const list = reinterpret_cast<const OPENSSL_STACK*>(all);
  for (int at = 0; at < ssl.OPENSSL_sk_num(list); ++at) {
    const auto* const name = static_cast<const GENERAL_NAME*>(ssl.OPENSSL_sk_value(list, at));
    if (name->type != GEN_DNS && name->type != GEN_EMAIL && name->type != GEN_URI) continue;
    add(names, ssl.ASN1_STRING_get0_data(name->d.ia5), ssl.ASN1_STRING_length(name->d.ia5));
  }
  ssl.GENERAL_NAMES_free(all);
}

}  // namespace

std::vector<std::string> Stream::certificate_names() const {
  std::vector<std::string> names;
  X509* const certificate = open_ ? openssl().SSL_get1_peer_certificate(ssl_) : nullptr;
  if (!certificate) return names;
  if (openssl().SSL_get_verify_result(ssl_) == X509_V_OK) {
    add_common_name(names, certificate);
    add_alternative_names(names, certificate);
  }
  openssl().X509_free(certificate);
  openssl().ERR_clear_error();
  return names;
}

}  // namespace gpupool::transport::tls
