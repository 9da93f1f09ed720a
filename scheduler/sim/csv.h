// Parser for comma-separated values with a header line and quoted fields, as spreadsheets write them. Used by
// trace.cc. Failures are Results whose message begins with FILE:LINE:COLUMN (counted from 1, columns in
// bytes).
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace gpupool::sim {

class Csv {
 public:
  // `file` is used in messages. Every row must have as many fields as the header.
  static Result<Csv> parse(std::string file, std::string_view text);
  static Result<Csv> read(const std::string& path);

  size_t rows() const { return rows_.size(); }
  // Returns the column's number; -1 if there is none of this name.
  int column(std::string_view name) const;
  Result<int> needed_column(std::string_view name) const;

  // Returns "" for column -1.
  const std::string& text(size_t row, int column) const;
  Result<int64_t> number(size_t row, int column, int64_t least = 0,
                         int64_t most = std::numeric_limits<int64_t>::max()) const;
  // Returns `otherwise` for column -1 and for empty fields.
  Result<int64_t> number_or(size_t row, int column, int64_t otherwise, int64_t least = 0,
                            int64_t most = std::numeric_limits<int64_t>::max()) const;
  Error error_at(size_t row, int column, const std::string& what) const;

 private:
  class Parser;
  struct Field {
    std::string text;
    uint32_t line = 0, column = 0;
  };

  std::string file_;
  std::vector<std::string> header_;
  std::vector<std::vector<Field>> rows_;
};

}  // namespace gpupool::sim
