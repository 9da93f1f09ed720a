#include "server/suspension/record_file.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>

namespace gpupool::suspension {
namespace {

constexpr std::array<char, 8> kMagic{'g', 'p', 'u', 's', 'u', 's', 'p', '\n'};
constexpr size_t kLeastKeyBytes = 32;
constexpr std::string_view kPurpose = "gpupool: records of a suspended session";

struct Preamble {
  std::array<char, 8> magic = kMagic;
  uint32_t version = RecordFormat::kVersion;
  uint32_t encrypted = 0;  // 1: the payloads are encrypted
  std::array<uint8_t, 32> salt{};
};
static_assert(sizeof(Preamble) == RecordFormat::kPreambleBytes);

struct Head {
  uint32_t kind = 0;
  uint32_t length = 0;  // bytes of the payload
};
static_assert(sizeof(Head) == RecordFormat::kHeadBytes);

// The salt makes the key another one for each file, so numbers of records can be the nonces.
bool derive_key(const std::optional<Secret>& secret, const Preamble& preamble, Secret& key) {
  const Secret material = secret.value_or(Secret{});
  std::array<uint8_t, kPurpose.size() + sizeof preamble> message{};
  std::memcpy(message.data(), kPurpose.data(), kPurpose.size());
  std::memcpy(message.data() + kPurpose.size(), &preamble, sizeof preamble);
  unsigned length = 0;
  return ::HMAC(EVP_sha256(), material.data(), static_cast<int>(material.size()), message.data(),
                message.size(), key.data(), &length) != nullptr &&
         length == key.size();
}

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { ::EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

const unsigned char* bytes_of(const std::byte* data) {
  return reinterpret_cast<const unsigned char*>(data);
}
unsigned char* bytes_of(std::byte* data) {
  return reinterpret_cast<unsigned char*>(data);
}

Context start(bool seals, const Secret& key, uint64_t number, const Head& head) {
  std::array<unsigned char, 12> nonce{};
  std::memcpy(nonce.data(), &number, sizeof number);
  Context context(::EVP_CIPHER_CTX_new());
  int ignored = 0;
  const bool ready = context &&
                     ::EVP_CipherInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key.data(), nonce.data(),
                                         seals ? 1 : 0) == 1 &&
                     ::EVP_CipherUpdate(context.get(), nullptr, &ignored,
                                        reinterpret_cast<const unsigned char*>(&head), sizeof head) == 1;
  return ready ? std::move(context) : nullptr;
}

// Encrypts or decrypts, or only authenticates (`out` null).
bool process(const Context& context, std::byte* out, std::span<const std::byte> in) {
  if (in.empty()) return true;
  int length = 0;
  return ::EVP_CipherUpdate(context.get(), out ? bytes_of(out) : nullptr, &length, bytes_of(in.data()),
                            static_cast<int>(in.size())) == 1;
}

bool seal(const Context& context, std::byte* tag) {
  std::array<unsigned char, 16> rest{};
  int length = 0;
  return ::EVP_CipherFinal_ex(context.get(), rest.data(), &length) == 1 && length == 0 &&
         ::EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, RecordFormat::kTagBytes, tag) == 1;
}

bool has_tag(const Context& context, const std::byte* tag) {
  std::array<unsigned char, 16> rest{};
  int length = 0;
  return ::EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, RecordFormat::kTagBytes,
                               const_cast<std::byte*>(tag)) == 1 &&
         ::EVP_CipherFinal_ex(context.get(), rest.data(), &length) == 1;
}

Error file_error(const char* doing) {
  return {ErrorCode::unavailable, std::string(doing) + ": " + std::generic_category().message(errno)};
}

Error crypto_error() {
  return {ErrorCode::unavailable, "AES-256-GCM of OpenSSL is not available"};
}

Error damaged(const std::string& how) {
  return {ErrorCode::malformed, "the file of the suspended session " + how};
}

Result<void> write_exact(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return file_error("writing the file of the suspended session");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace

Result<Secret> secret_of(const std::string& key_file_bytes) {
  if (key_file_bytes.size() < kLeastKeyBytes)
    return Error{ErrorCode::invalid, "has less than " + std::to_string(kLeastKeyBytes) +
                                         " bytes; make one with: head -c 32 /dev/urandom > FILE"};
  Secret secret{};
  ::SHA256(reinterpret_cast<const unsigned char*>(key_file_bytes.data()), key_file_bytes.size(),
           secret.data());
  return secret;
}

Result<RecordWriter> RecordWriter::begin(int file, const std::optional<Secret>& secret) {
  Preamble preamble{.encrypted = secret ? 1u : 0u};
  if (::getrandom(preamble.salt.data(), preamble.salt.size(), 0) !=
      static_cast<ssize_t>(preamble.salt.size()))
    return file_error("getting random numbers");
  RecordWriter writer(file, secret.has_value());
  if (!derive_key(secret, preamble, writer.key_)) return crypto_error();
  if (auto written = write_exact(file, std::as_bytes(std::span(&preamble, 1))); !written)
    return written.error();
  return writer;
}

Result<void> RecordWriter::append(RecordKind kind, std::span<const std::byte> payload) {
  if (payload.size() > RecordFormat::kMostPayload)
    return Error{ErrorCode::limit, "a record of a suspended session is too long"};
  const Head head{static_cast<uint32_t>(kind), static_cast<uint32_t>(payload.size())};
  record_.resize(size_of(payload.size()));
  std::memcpy(record_.data(), &head, sizeof head);
  std::byte* const body = record_.data() + sizeof head;
  if (!encrypts_ && !payload.empty()) std::memcpy(body, payload.data(), payload.size());
  const Context context = start(true, key_, count_++, head);
  if (!context || !process(context, encrypts_ ? body : nullptr, payload) ||
      !seal(context, body + payload.size()))
    return crypto_error();
  return write_exact(file_, record_);
}

Result<RecordReader> RecordReader::open(int file, const std::optional<Secret>& secret) {
  RecordReader reader(file, false);
  Preamble preamble;
  if (auto got = reader.read_exact(std::as_writable_bytes(std::span(&preamble, 1))); !got) return got.error();
  if (preamble.magic != kMagic || preamble.encrypted > 1)
    return Error{ErrorCode::malformed, "not the file of a suspended session"};
  if (preamble.version != RecordFormat::kVersion)
    return Error{ErrorCode::malformed, "the file is of version " + std::to_string(preamble.version) +
                                           "; use the release of gpupool that wrote it"};
  reader.encrypted_ = preamble.encrypted == 1;
  if (reader.encrypted_ && !secret)
    return Error{ErrorCode::refused, "the file is encrypted; see --suspended-key of poold"};
  if (!derive_key(reader.encrypted_ ? secret : std::nullopt, preamble, reader.key_)) return crypto_error();
  return reader;
}

Result<void> RecordReader::read_exact(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(file_, bytes.data(), bytes.size(), static_cast<off_t>(at_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error("reading the file of the suspended session");
    if (got == 0) return damaged("is cut off");
    at_ += static_cast<uint64_t>(got);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return {};
}

Result<RecordReader::Record> RecordReader::next() {
  Head head;
  if (auto got = read_exact(std::as_writable_bytes(std::span(&head, 1))); !got) return got.error();
  if (head.length > RecordFormat::kMostPayload) return damaged("was altered");
  sealed_.resize(head.length + RecordFormat::kTagBytes);
  if (auto got = read_exact(sealed_); !got) return got.error();
  const auto body = std::span(sealed_).first(head.length);
  if (encrypted_) payload_.resize(head.length);
  const Context context = start(false, key_, count_++, head);
  if (!context) return crypto_error();
  if (!process(context, encrypted_ ? payload_.data() : nullptr, body) ||
      !has_tag(context, sealed_.data() + head.length))
    return damaged(encrypted_ ? "was altered, or is encrypted with another key" : "was altered");
  return Record{static_cast<RecordKind>(head.kind), encrypted_ ? std::span<const std::byte>(payload_) : body};
}

Result<bool> RecordReader::at_end() {
  while (true) {
    std::byte more{};
    const ssize_t got = ::pread(file_, &more, 1, static_cast<off_t>(at_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error("reading the file of the suspended session");
    return got == 0;
  }
}

}  // namespace gpupool::suspension
