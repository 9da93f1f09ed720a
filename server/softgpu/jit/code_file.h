// Cache of compiled code: one file of bounded size, shared by all processes of a user.
//
// A descriptor alone identifies the file, so a process without access to any folder can use it. Entries are
// found by key, appended, and verified by checksum when read. When the file is full, the least recently used
// entries are dropped. All functions are thread-safe and safe against concurrent use by other processes.
// Errors are not reported: an entry that is missing, damaged or cannot be written is compiled again.
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

  // Takes ownership of the descriptor, which must be open for reading and writing. `limit`: maximum size of
  // the file in bytes.
  CodeFile(int descriptor, uint64_t limit);
  ~CodeFile();
  CodeFile(const CodeFile&) = delete;
  CodeFile& operator=(const CodeFile&) = delete;

  std::optional<std::vector<char>> find(const CodeKey& key);
  // Stores `content` under `key`, unless it exceeds a quarter of the limit or another process holds the
  // file's lock for more than 200 ms.
  void add(const CodeKey& key, std::span<const char> content);

 private:
  struct FileHeader;
  struct EntryHeader;
  struct Entry {
    uint64_t offset = 0;  // offset of its header
    uint64_t size = 0;    // size of its content
    uint64_t used = 0;    // time of last use, in ns since 1970
  };

  bool read_header(FileHeader& header);
  void refresh(FileHeader& header);
  std::optional<std::vector<char>> read_entry(const CodeKey& key, const Entry& entry);
  void drop_damaged(const CodeKey& key, uint64_t generation);
  bool clear(FileHeader& header);
  void make_room(FileHeader& header, uint64_t bytes);

  const int descriptor_;
  const uint64_t limit_;
  std::mutex mutex_;  // guards the members below; held while this process has the file's lock
  std::map<CodeKey, Entry> entries_;
  uint64_t generation_ = 0;  // generation of the file when entries_ was read
  uint64_t scanned_ = 0;     // entries_ covers the file up to this offset
};

}  // namespace gpupool::softgpu
