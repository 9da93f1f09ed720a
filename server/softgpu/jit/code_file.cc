#include "server/softgpu/jit/code_file.h"

#include <fcntl.h>
#include <llvm/Support/BLAKE3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/files/locked_file.h"

namespace gpupool::softgpu {

// A zero-filled file is empty. `generation` changes whenever entries move; `moving` is 1 while they move, and
// stays 1 if the process dies meanwhile.
struct CodeFile::FileHeader {
  uint64_t magic = 0;
  uint64_t end = 0;  // end of the last entry
  uint64_t generation = 0;
  uint64_t moving = 0;
};

struct CodeFile::EntryHeader {
  uint64_t magic = 0;
  uint64_t size = 0;
  uint64_t used = 0;
  CodeKey key{};
  CodeKey checksum{};  // of key and content
};

namespace {

constexpr uint64_t kFileMagic = 0x3145444f43475053;     // "SPGCODE1"
constexpr uint64_t kEntryMagic = 0x3159525445475053;    // "SPGETRY1"
constexpr std::chrono::milliseconds kLongestWait{200};  // maximum wait for another process's lock

uint64_t now() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

uint64_t padded(uint64_t size) {
  return (size + 7) & ~uint64_t{7};
}

CodeKey checksum_of(const CodeKey& key, std::span<const char> content) {
  llvm::BLAKE3 hash;
  hash.update(llvm::ArrayRef<uint8_t>(key.data(), key.size()));
  hash.update(llvm::ArrayRef<uint8_t>(reinterpret_cast<const uint8_t*>(content.data()), content.size()));
  return hash.final<32>();
}

bool read_all(int file, void* to, uint64_t bytes, uint64_t offset) {
  return files::read_at(file, to, bytes, offset) == static_cast<ssize_t>(bytes);
}

// The process owns it: processes that were given the descriptor share the open file.
files::FileLock lock_of(int file) {
  return {file, files::LockOwner::process, kLongestWait};
}

}  // namespace

CodeFile::CodeFile(int descriptor, uint64_t limit)
    : descriptor_(descriptor), limit_(std::max(limit, kSmallestLimit)) {}

CodeFile::~CodeFile() {
  ::close(descriptor_);
}

// Returns false if the file has no valid header.
bool CodeFile::read_header(FileHeader& header) {
  struct stat status {};
  return read_all(descriptor_, &header, sizeof header, 0) && header.magic == kFileMagic &&
         header.moving == 0 && ::fstat(descriptor_, &status) == 0 && header.end >= sizeof header &&
         header.end <= static_cast<uint64_t>(status.st_size);
}

// Updates entries_ from the file. At the first invalid entry it stops and sets header.magic to 0.
void CodeFile::refresh(FileHeader& header) {
  if (!read_header(header)) {
    entries_.clear();
    header = {};
    generation_ = scanned_ = 0;
    return;
  }
  if (header.generation != generation_ || scanned_ < sizeof header || scanned_ > header.end) {
    entries_.clear();
    generation_ = header.generation;
    scanned_ = sizeof header;
  }
  while (scanned_ < header.end) {
    EntryHeader entry;
    const uint64_t room = header.end - scanned_;
    if (room < sizeof entry || !read_all(descriptor_, &entry, sizeof entry, scanned_) ||
        entry.magic != kEntryMagic || entry.size > room - sizeof entry ||
        padded(entry.size) > room - sizeof entry) {
      header.magic = 0;
      return;
    }
    entries_[entry.key] = {scanned_, entry.size, entry.used};
    scanned_ += sizeof entry + padded(entry.size);
  }
}

std::optional<std::vector<char>> CodeFile::read_entry(const CodeKey& key, const Entry& entry) {
  EntryHeader header;
  if (!read_all(descriptor_, &header, sizeof header, entry.offset) || header.magic != kEntryMagic ||
      header.key != key || header.size != entry.size)
    return std::nullopt;
  std::vector<char> content(entry.size);
  if (!read_all(descriptor_, content.data(), content.size(), entry.offset + sizeof header))
    return std::nullopt;
  if (checksum_of(key, content) != header.checksum) return std::nullopt;
  return content;
}

std::optional<std::vector<char>> CodeFile::find(const CodeKey& key) {
  std::lock_guard guard(mutex_);
  // Try twice: another process may move the entries during the read.
  for (int attempt = 0; attempt < 2; ++attempt) {
    FileHeader header;
    refresh(header);
    const auto it = entries_.find(key);
    if (it == entries_.end()) return std::nullopt;
    if (auto content = read_entry(key, it->second)) {
      it->second.used = now();
      files::write_at(descriptor_, &it->second.used, sizeof(uint64_t),
                      it->second.offset + offsetof(EntryHeader, used));
      return content;
    }
    drop_damaged(key, header.generation);
  }
  return std::nullopt;
}

// Removes an entry that could not be read, unless the entries have moved since.
void CodeFile::drop_damaged(const CodeKey& key, uint64_t generation) {
  const auto lock = lock_of(descriptor_);
  if (!lock.held()) return;
  FileHeader header;
  refresh(header);
  const auto it = entries_.find(key);
  if (it == entries_.end() || header.generation != generation || read_entry(key, it->second)) return;
  const CodeKey nobody{};
  files::write_at(descriptor_, nobody.data(), nobody.size(), it->second.offset + offsetof(EntryHeader, key));
  entries_.erase(it);
}

// Makes the file empty. The file's lock must be held.
bool CodeFile::clear(FileHeader& header) {
  entries_.clear();
  generation_ = now();
  scanned_ = sizeof header;
  header = {kFileMagic, sizeof header, generation_, 0};
  (void)!::ftruncate(descriptor_, static_cast<off_t>(sizeof header));  // may fail for a file of fixed size
  return files::write_at(descriptor_, &header, sizeof header, 0);
}

// Keeps the most recently used entries that fit into half of the limit, and compacts them. The file's lock
// must be held.
void CodeFile::make_room(FileHeader& header, uint64_t bytes) {
  std::vector<std::pair<CodeKey, Entry>> kept(entries_.begin(), entries_.end());
  for (auto& [key, entry] : kept) {  // other processes may have used entries since
    EntryHeader stored;
    if (read_all(descriptor_, &stored, sizeof stored, entry.offset)) entry.used = stored.used;
  }
  std::erase_if(kept, [](const auto& one) { return one.first == CodeKey{}; });
  std::sort(kept.begin(), kept.end(),
            [](const auto& a, const auto& b) { return a.second.used > b.second.used; });
  uint64_t sum = sizeof header + bytes;
  size_t count = 0;
  while (count < kept.size() && (sum += sizeof(EntryHeader) + padded(kept[count].second.size)) <= limit_ / 2)
    ++count;
  kept.resize(count);
  std::sort(kept.begin(), kept.end(),
            [](const auto& a, const auto& b) { return a.second.offset < b.second.offset; });

  header.moving = 1;
  ++header.generation;
  if (!files::write_at(descriptor_, &header, sizeof header, 0)) return;
  uint64_t end = sizeof header;
  entries_.clear();
  for (auto& [key, entry] : kept) {
    std::vector<char> record(sizeof(EntryHeader) + padded(entry.size));
    if (!read_all(descriptor_, record.data(), record.size(), entry.offset) ||
        !files::write_at(descriptor_, record.data(), record.size(), end))
      break;
    entries_[key] = {end, entry.size, entry.used};
    end += record.size();
  }
  header.moving = 0;
  header.end = scanned_ = end;
  generation_ = header.generation;
  files::write_at(descriptor_, &header, sizeof header, 0);
  (void)!::ftruncate(descriptor_, static_cast<off_t>(end));
}

void CodeFile::add(const CodeKey& key, std::span<const char> content) {
  const uint64_t bytes = sizeof(EntryHeader) + padded(content.size());
  if (bytes > limit_ / 4) return;
  std::lock_guard guard(mutex_);
  const auto lock = lock_of(descriptor_);
  if (!lock.held()) return;
  FileHeader header;
  refresh(header);
  if (header.magic != kFileMagic && !clear(header)) return;
  if (entries_.contains(key)) return;
  if (header.end > limit_ - bytes) make_room(header, bytes);
  if (header.moving != 0 || header.end > limit_ - bytes) return;
  EntryHeader entry{kEntryMagic, content.size(), now(), key, checksum_of(key, content)};
  std::vector<char> record(bytes);
  std::memcpy(record.data(), &entry, sizeof entry);
  std::copy(content.begin(), content.end(), record.begin() + sizeof entry);
  if (!files::write_at(descriptor_, record.data(), record.size(), header.end)) return;
  entries_[key] = {header.end, content.size(), entry.used};
  header.end = scanned_ = header.end + bytes;
  files::write_at(descriptor_, &header, sizeof header, 0);
}

}  // namespace gpupool::softgpu
