// Text in columns, for a terminal of a certain width or for other programs.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace gpupool::admin {

class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;     // numbers
    size_t shortest = 0;    // not 0: may be cut down to this many characters where the line is too long
    int importance = 100;   // columns of less are left out where cutting is not enough, the least first
    bool wraps = false;     // texts that are too long go on in the next line instead of being cut
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // As many texts as there are columns. They are made printable, and cut to kMostCellBytes: many are what clients and servers say of themselves.
  static constexpr size_t kMostCellBytes = 4096;
  void add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  // `width` 0: as wide as it needs.
  std::string text(size_t width) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Characters, not bytes.
size_t characters(const std::string& text);
// Lines of at most so many characters (not 0), which end between words where there are some.
std::vector<std::string> wrapped(const std::string& text, size_t most);
// At most so many characters; what was cut ends in an ellipsis.
std::string shortened(const std::string& text, size_t most);

}  // namespace gpupool::admin
