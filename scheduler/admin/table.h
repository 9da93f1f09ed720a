// Text tables for pool-admin, fitted to the width of the terminal. Does not fail.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace gpupool::admin {

class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;    // right-aligned, for numbers
    size_t shortest = 0;   // non-zero: may be truncated to this many characters if the line is too long
    int importance = 100;  // columns below 100 are omitted if truncating does not suffice, the lowest first
    bool wraps = false;    // wraps long texts instead of truncating them
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // `row` must have one text per column. Cells are made printable and truncated to kMaxCellBytes, because
  // many come from clients and servers.
  static constexpr size_t kMaxCellBytes = 4096;
  void add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  // Returns the table with lines of at most `width` characters if possible; 0: unlimited.
  std::string text(size_t width) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Returns the number of UTF-8 characters.
size_t characters(const std::string& text);
// Splits the text into lines of at most `most` characters (non-zero), between words where possible.
std::vector<std::string> wrapped(const std::string& text, size_t most);
// Truncates the text to `most` characters, including an ellipsis if something was cut.
std::string shortened(const std::string& text, size_t most);

}  // namespace gpupool::admin
