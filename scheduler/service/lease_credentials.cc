#include "scheduler/service/lease_credentials.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstring>

namespace gpupool::scheduler {
namespace {

constexpr size_t kMacBytes = 32;

bool same(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// Returns the bytes that the ticket authenticates: the tenant and the request without the ticket.
std::string ticket_scope(const std::string& tenant, const pool::Request& request) {
  pool::Request bare = request;
  bare.clear_ticket();
  bare.clear_tenant();
  return tenant + '\n' + bare.SerializeAsString();
}

}  // namespace

// Ed25519 signatures are deterministic and need the private key, so this one serves as a derived secret. It
// is never published, and the signed text is not a valid lease.
LeaseCredentials::LeaseCredentials(const lease::SigningKey& key)
    : key_(key.sign("gpupool scheduler seals 1\n")) {}

std::string LeaseCredentials::mac(const std::string& purpose, const std::string& message) const {
  const std::string whole = purpose + '\n' + message;
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned size = 0;
  ::HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
         reinterpret_cast<const unsigned char*>(whole.data()), whole.size(), out.data(), &size);
  return {reinterpret_cast<const char*>(out.data()), size};
}

std::string LeaseCredentials::lease_secret(const LeaseId& lease) const {
  return mac("lease", lease);
}

bool LeaseCredentials::is_lease_secret(const LeaseId& lease, const std::string& secret) const {
  return same(lease_secret(lease), secret);
}

std::string LeaseCredentials::ticket(const std::string& tenant, const pool::Request& request,
                                     Time arrived) const {
  std::string bytes(sizeof arrived, '\0');
  std::memcpy(bytes.data(), &arrived, sizeof arrived);
  return bytes + mac("ticket", bytes + ticket_scope(tenant, request));
}

std::optional<Time> LeaseCredentials::arrival(const std::string& tenant, const pool::Request& request) const {
  const std::string& ticket = request.ticket();
  Time arrived = 0;
  if (ticket.size() != sizeof arrived + kMacBytes) return std::nullopt;
  const std::string bytes = ticket.substr(0, sizeof arrived);
  if (!same(ticket.substr(sizeof arrived), mac("ticket", bytes + ticket_scope(tenant, request))))
    return std::nullopt;
  std::memcpy(&arrived, bytes.data(), sizeof arrived);
  return arrived;
}

}  // namespace gpupool::scheduler
