// Compiled code of earlier processes: one file of bounded size that all processes of a user share.
//
// The file is named by a descriptor alone, so that a process without access to any folder can be given one. Entries are
// found by key, appended, and verified when they are read; when the file is full, those that were not used for longest are
// dropped. All functions are thread-safe and take part in what other processes do at the same time. Nothing here fails:
// an entry that is missing, damaged or cannot be written is compiled again.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace gpupool::softgpu {

using CodeKey = std::array<uint8_t, 32>;

class CodeFile {
 public:
  static constexpr uint64_t kSmallestLimit = 64 << 10;

  // Takes over the descriptor, open for reading and writing. `limit`: bytes that the file may have.
  CodeFile(int descriptor, uint64_t limit);
  ~CodeFile();
  CodeFile(const CodeFile&) = delete;
  CodeFile& operator=(const CodeFile&) = delete;

  std::optional<std::vector<char>> find(const CodeKey& key);
  // Keeps `content` under `key`, unless it is more than a quarter of the limit or other processes are in the way for long.
  void add(const CodeKey& key, std::span<const char> content);

 private:
  struct FileHeader;
  struct EntryHeader;
  struct Entry {
    uint64_t offset = 0;  // of its header
    uint64_t size = 0;    // of its content
    uint64_t used = 0;    // when, in ns since 1970
  };
  class FileLock;

  bool read_header(FileHeader& header);
  void refresh(FileHeader& header);
  std::optional<std::vector<char>> read_entry(const CodeKey& key, const Entry& entry);
  void drop_damaged(const CodeKey& key, uint64_t generation);
  bool clear(FileHeader& header);
  void make_room(FileHeader& header, uint64_t bytes);

  const int descriptor_;
  const uint64_t limit_;
  std::mutex mutex_;  // guards what follows, and is held while this process has the file's lock
  std::map<CodeKey, Entry> entries_;
  uint64_t generation_ = 0;  // of the file when entries_ was read
  uint64_t scanned_ = 0;     // entries_ knows the file up to here
};

}  // namespace gpupool::softgpu
