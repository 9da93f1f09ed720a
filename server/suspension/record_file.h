// A file of sealed records, in which poold keeps a suspended session (docs/adr/0038-suspended-sessions.md).
//
// A preamble with a random salt, then the records: kind, length, payload and a tag of 16 bytes. Every record
// is sealed with AES-256-GCM under its number, with a key that is derived from the preamble and the secret. A
// record that was altered, or that has another place or comes from another file, is refused. Without a secret
// everybody can compute the key: the payload is then readable, and the tags only detect damage.
//
// One thread at a time. Blocks while the file system does.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::suspension {

using Secret = std::array<uint8_t, 32>;

// Derives the secret from the bytes of a key file, which must have at least 32.
Result<Secret> secret_of(const std::string& key_file_bytes);

enum class RecordKind : uint32_t { header = 1, commands = 2, end = 3 };

struct RecordFormat {
  static constexpr uint32_t kVersion = 1;
  static constexpr size_t kPreambleBytes = 48, kHeadBytes = 8, kTagBytes = 16;
  static constexpr size_t kMostPayload = 16u << 20;
};

class RecordWriter {
 public:
  // `file` stays the caller's, and is empty.
  static Result<RecordWriter> begin(int file, const std::optional<Secret>& secret);
  // ErrorCode::unavailable: the file cannot be written, for instance because the disk is full.
  Result<void> append(RecordKind kind, std::span<const std::byte> payload);
  // The length of a record in the file.
  static uint64_t size_of(size_t payload_bytes) {
    return RecordFormat::kHeadBytes + payload_bytes + RecordFormat::kTagBytes;
  }

 private:
  RecordWriter(int file, bool encrypts) : file_(file), encrypts_(encrypts) {}

  int file_;
  bool encrypts_;
  Secret key_{};
  uint64_t count_ = 0;
  std::vector<std::byte> record_;
};

class RecordReader {
 public:
  // Reads from the beginning of `file`, which stays the caller's. ErrorCode::malformed: it is not such a
  // file; refused: it is encrypted, and there is no secret.
  static Result<RecordReader> open(int file, const std::optional<Secret>& secret);
  struct Record {
    RecordKind kind;
    std::span<const std::byte> payload;  // valid until the next call
  };
  // ErrorCode::malformed: the file was altered, or is cut off.
  Result<Record> next();
  // True if the file ends here.
  Result<bool> at_end();
  bool encrypted() const { return encrypted_; }

 private:
  RecordReader(int file, bool encrypted) : file_(file), encrypted_(encrypted) {}
  Result<void> read_exact(std::span<std::byte> bytes);

  int file_;
  bool encrypted_;
  Secret key_{};
  uint64_t at_ = 0;  // bytes
  uint64_t count_ = 0;
  std::vector<std::byte> sealed_, payload_;
};

}  // namespace gpupool::suspension
