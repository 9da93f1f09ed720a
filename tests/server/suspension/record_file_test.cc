// Tests that a file of sealed records is read as it was written, and that no change of it goes unnoticed.
#include "server/suspension/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/server/suspension/memory_file.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::suspension;
using testing::MemoryFile;

namespace {

using Bytes = std::vector<std::byte>;
using Contents = std::vector<std::pair<RecordKind, Bytes>>;

Bytes bytes_of(const MemoryFile& file) {
  Bytes all(file.size());
  REQUIRE(::pread(file.descriptor(), all.data(), all.size(), 0) == static_cast<ssize_t>(all.size()));
  return all;
}

Bytes filled(size_t size, unsigned char value) {
  return Bytes(size, std::byte{value});
}

const Contents kContents{{RecordKind::header, filled(40, 1)},
                         {RecordKind::commands, filled(100, 2)},
                         {RecordKind::commands, {}},
                         {RecordKind::commands, filled(100, 3)},
                         {RecordKind::end, filled(5, 4)}};

Secret secret(const std::string& key) {
  return *secret_of(key);
}
const std::optional<Secret> kSecrets[] = {std::nullopt, secret(std::string(32, 'k'))};

Bytes written(const Contents& contents, const std::optional<Secret>& secret) {
  const MemoryFile file;
  auto writer = RecordWriter::begin(file.descriptor(), secret);
  REQUIRE(writer);
  for (const auto& [kind, payload] : contents) REQUIRE(writer->append(kind, payload));
  return bytes_of(file);
}

// Everything up to the record `end`, which must be the file's last.
Result<Contents> read(const Bytes& bytes, const std::optional<Secret>& secret) {
  const MemoryFile file(bytes);
  auto reader = RecordReader::open(file.descriptor(), secret);
  if (!reader) return reader.error();
  Contents contents;
  while (contents.empty() || contents.back().first != RecordKind::end) {
    auto record = reader->next();
    if (!record) return record.error();
    contents.emplace_back(record->kind, Bytes(record->payload.begin(), record->payload.end()));
  }
  const auto at_end = reader->at_end();
  if (!at_end) return at_end.error();
  if (!*at_end) return Error{ErrorCode::malformed, "more follows"};
  return contents;
}

bool contains(const Bytes& bytes, const Bytes& part) {
  return std::search(bytes.begin(), bytes.end(), part.begin(), part.end()) != bytes.end();
}

}  // namespace

TEST_CASE("records are read as they were written") {
  for (const auto& secret : kSecrets) {
    const auto all = read(written(kContents, secret), secret);
    REQUIRE(all);
    CHECK(*all == kContents);
  }
}

TEST_CASE("payloads are readable in the file only without a secret") {
  CHECK(contains(written(kContents, kSecrets[0]), filled(100, 3)));
  CHECK_FALSE(contains(written(kContents, kSecrets[1]), filled(16, 3)));
}

TEST_CASE("two files of the same contents and secret have nothing in common") {
  const Bytes one = written(kContents, kSecrets[1]), two = written(kContents, kSecrets[1]);
  REQUIRE(one.size() == two.size());
  CHECK_FALSE(contains(two, Bytes(one.begin() + 60, one.begin() + 80)));
}

TEST_CASE("an encrypted file cannot be read without its secret") {
  const Bytes bytes = written(kContents, kSecrets[1]);
  const auto without = read(bytes, std::nullopt);
  REQUIRE_FALSE(without);
  CHECK(without.error().code == ErrorCode::refused);
  const auto wrong = read(bytes, secret(std::string(32, 'x')));
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message.find("another key") != std::string::npos);
}

TEST_CASE("a file that is cut at any byte is refused") {
  for (const auto& secret : kSecrets) {
    const Bytes bytes = written(kContents, secret);
    for (size_t size = 0; size < bytes.size(); ++size) {
      INFO(size << " of " << bytes.size() << " bytes");
      CHECK_FALSE(read(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size)), secret));
    }
  }
}

TEST_CASE("a file in which any byte was altered is refused") {
  for (const auto& secret : kSecrets) {
    const Bytes bytes = written(kContents, secret);
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const unsigned char bit : {1, 128}) {
        Bytes altered = bytes;
        altered[at] ^= std::byte{bit};
        INFO("byte " << at);
        CHECK_FALSE(read(altered, secret));
      }
    }
  }
}

TEST_CASE("records that are swapped, repeated, left out or from another file are refused") {
  for (const auto& secret : kSecrets) {
    const Bytes bytes = written(kContents, secret), other = written(kContents, secret);
    const auto at = [](size_t record) {
      size_t place = RecordFormat::kPreambleBytes;
      for (size_t i = 0; i < record; ++i) place += RecordWriter::size_of(kContents[i].second.size());
      return static_cast<ptrdiff_t>(place);
    };
    const auto with = [&](std::vector<size_t> records, const Bytes& from) {
      Bytes made(bytes.begin(), bytes.begin() + at(1));
      for (const size_t record : records)
        made.insert(made.end(), from.begin() + at(record), from.begin() + at(record + 1));
      return made;
    };
    CHECK(read(with({1, 2, 3, 4}, bytes), secret));
    CHECK_FALSE(read(with({3, 2, 1, 4}, bytes), secret));
    CHECK_FALSE(read(with({1, 1, 2, 3, 4}, bytes), secret));
    CHECK_FALSE(read(with({1, 3, 4}, bytes), secret));
    CHECK_FALSE(read(with({4}, bytes), secret));
    CHECK_FALSE(read(with({1, 2, 3, 4}, other), secret));
    CHECK_FALSE(read(with({1, 2, 3, 4, 4}, bytes), secret));
  }
}

TEST_CASE("a key file with too few bytes is refused") {
  CHECK_FALSE(secret_of(std::string(31, 'k')));
  CHECK(secret_of(std::string(32, 'k')));
}

TEST_CASE("a full disk is an error of the writer") {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  REQUIRE(full >= 0);
  const auto writer = RecordWriter::begin(full, std::nullopt);
  ::close(full);
  REQUIRE_FALSE(writer);
  CHECK(writer.error().message.find("No space left") != std::string::npos);
}
