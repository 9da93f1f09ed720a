// The scheduler's key pair, Ed25519 (RFC 8032): the scheduler signs leases, poold verifies them. Keys are
// immutable; any thread.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"

namespace gpupool::lease {

class PublicKey {
 public:
  static constexpr size_t kBytes = 32;
  explicit PublicKey(const std::array<unsigned char, kBytes>& raw);
  // Reads a PEM file ("PUBLIC KEY"). ErrorCode::invalid, with the reason, if it has no Ed25519 public key. A
  // private key is rejected: it must not be on hosts other than the scheduler's.
  static Result<PublicKey> read(const std::string& path);

  const std::string& id() const { return id_; }  // SignedLease.key_id
  bool verify(std::string_view message, std::string_view signature) const;
  std::string pem() const;
  std::string raw() const { return {raw_.begin(), raw_.end()}; }
  bool operator==(const PublicKey& other) const { return raw_ == other.raw_; }

 private:
  std::array<unsigned char, kBytes> raw_;
  std::string id_;
};

class SigningKey {
 public:
  static Result<SigningKey> make();
  // Reads a PEM file ("PRIVATE KEY"). ErrorCode::invalid if it has no Ed25519 private key, or other users can
  // read it.
  static Result<SigningKey> read(const std::string& path);
  // Writes a new PEM file with mode 0600. ErrorCode::invalid if the file exists or cannot be written.
  Result<void> write(const std::string& path) const;

  const PublicKey& public_key() const { return public_; }
  // Returns the signature of 64 bytes, or an empty string if OpenSSL fails.
  std::string sign(std::string_view message) const;

 private:
  struct Secret;
  SigningKey(std::shared_ptr<const Secret> secret, const PublicKey& its_public);
  std::shared_ptr<const Secret> secret_;
  PublicKey public_;
};

}  // namespace gpupool::lease
