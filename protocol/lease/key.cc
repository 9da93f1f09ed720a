#include "protocol/lease/key.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "common/files/exposure.h"

namespace gpupool::lease {
namespace {

constexpr size_t kMostFileBytes = 16 * 1024;
constexpr size_t kSignatureBytes = 64;

struct Free {
  void operator()(EVP_PKEY* key) const { ::EVP_PKEY_free(key); }
  void operator()(EVP_MD_CTX* context) const { ::EVP_MD_CTX_free(context); }
  void operator()(BIO* bio) const { ::BIO_free_all(bio); }
};
using Key = std::unique_ptr<EVP_PKEY, Free>;
using Context = std::unique_ptr<EVP_MD_CTX, Free>;
using Bio = std::unique_ptr<BIO, Free>;

const unsigned char* bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

Error cannot(const char* doing, const std::string& path, const std::string& why) {
  return {ErrorCode::invalid, std::string("cannot ") + doing + " the key '" + path + "': " + why};
}

std::string errno_text() {
  return std::generic_category().message(errno);
}

struct Descriptor {
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
  int number = -1;
};

Result<std::string> read_file(const std::string& path, bool secret) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)};
  if (file.number < 0) return cannot("read", path, errno_text());
  // A user who can replace a public key can sign leases that this host accepts.
  if (const auto checked = secret ? files::check_secret(file.number, path) : files::check_not_writable(path);
      !checked) {
    return checked.error();
  }
  std::string text(kMostFileBytes, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.number, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot("read", path, errno_text());
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

Bio reader(const std::string& text) {
  return Bio(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Makes keys with a password fail instead of prompting for it.
int no_password(char*, int, int, void*) {
  return -1;
}

Key private_key(const std::string& pem) {
  return Key(::PEM_read_bio_PrivateKey(reader(pem).get(), nullptr, no_password, nullptr));
}
Key public_key(const std::string& pem) {
  return Key(::PEM_read_bio_PUBKEY(reader(pem).get(), nullptr, no_password, nullptr));
}

std::optional<PublicKey> public_part(const Key& key) {
  std::array<unsigned char, PublicKey::kBytes> raw{};
  size_t size = raw.size();
  if (!key || ::EVP_PKEY_id(key.get()) != EVP_PKEY_ED25519 ||
      ::EVP_PKEY_get_raw_public_key(key.get(), raw.data(), &size) != 1 || size != raw.size()) {
    return std::nullopt;
  }
  return PublicKey(raw);
}

std::string contents(const Bio& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

}  // namespace

PublicKey::PublicKey(const std::array<unsigned char, kBytes>& raw) : raw_(raw) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  ::SHA256(raw.data(), raw.size(), hash);
  id_.assign(reinterpret_cast<const char*>(hash), 8);
}

Result<PublicKey> PublicKey::read(const std::string& path) {
  auto text = read_file(path, false);
  if (!text) return text.error();
  const auto key = public_part(public_key(*text));
  const bool is_private = !key && text->find("PRIVATE KEY-----") != std::string::npos;
  ::OPENSSL_cleanse(text->data(), text->size());
  ::ERR_clear_error();
  if (is_private) {
    return cannot(
        "use", path,
        "it is the private key, which must stay on the scheduler's host; write the public key to a file with "
        "`pool-scheduler --key " +
            path + " --print-public-key > FILE` and use that");
  }
  if (!key) return cannot("use", path, "it is not an Ed25519 public key in PEM format");
  return *key;
}

bool PublicKey::verify(std::string_view message, std::string_view signature) const {
  if (signature.size() != kSignatureBytes) return false;
  const Key key(::EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, raw_.data(), raw_.size()));
  const Context context(::EVP_MD_CTX_new());
  const bool good =
      key && context && ::EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
      ::EVP_DigestVerify(context.get(), bytes(signature), signature.size(), bytes(message), message.size()) ==
          1;
  ::ERR_clear_error();
  return good;
}

std::string PublicKey::pem() const {
  const Key key(::EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, raw_.data(), raw_.size()));
  const Bio bio(::BIO_new(::BIO_s_mem()));
  ::PEM_write_bio_PUBKEY(bio.get(), key.get());
  return contents(bio);
}

struct SigningKey::Secret {
  explicit Secret(std::shared_ptr<EVP_PKEY> secret_key) : key(std::move(secret_key)) {}
  std::shared_ptr<EVP_PKEY> key;
};

SigningKey::SigningKey(std::shared_ptr<const Secret> secret, const PublicKey& its_public)
    : secret_(std::move(secret)), public_(its_public) {}

Result<SigningKey> SigningKey::make() {
  Key key(::EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  const auto its_public = public_part(key);
  if (!its_public) return Error{ErrorCode::unavailable, "OpenSSL cannot generate an Ed25519 key"};
  return SigningKey(std::make_shared<const Secret>(std::move(key)), *its_public);
}

Result<SigningKey> SigningKey::read(const std::string& path) {
  auto text = read_file(path, true);
  if (!text) return text.error();
  Key key = private_key(*text);
  ::OPENSSL_cleanse(text->data(), text->size());
  ::ERR_clear_error();
  const auto its_public = public_part(key);
  if (!its_public) return cannot("use", path, "it is not an unencrypted Ed25519 private key in PEM format");
  return SigningKey(std::make_shared<const Secret>(std::move(key)), *its_public);
}

Result<void> SigningKey::write(const std::string& path) const {
  const Bio bio(::BIO_new(::BIO_s_secmem()));
  if (!bio ||
      ::PEM_write_bio_PrivateKey(bio.get(), secret_->key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return cannot("write", path, "OpenSSL cannot encode it as PEM");
  }
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  const Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
  if (file.number < 0) return cannot("write", path, errno_text());
  if (::write(file.number, data, static_cast<size_t>(size)) == size && ::fsync(file.number) == 0) return {};
  const std::string why = errno_text();
  ::unlink(path.c_str());
  return cannot("write", path, why);
}

std::string SigningKey::sign(std::string_view message) const {
  std::string signature(kSignatureBytes, '\0');
  size_t size = signature.size();
  const Context context(::EVP_MD_CTX_new());
  const bool good = context &&
                    ::EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, secret_->key.get()) == 1 &&
                    ::EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                                     bytes(message), message.size()) == 1;
  return good ? signature : std::string();
}

}  // namespace gpupool::lease
