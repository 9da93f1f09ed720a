// Comma-separated values as spreadsheets write them: a header line names the columns; fields may be quoted. Pure; failures are Results
// whose message begins with FILE:LINE:COLUMN (from 1, columns in characters of the line).
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/wire/result.h"

namespace gpupool::sim {

class Csv {
 public:
  // `file` is for messages. Every row has as many fields as the header.
  static Result<Csv> parse(std::string file, std::string_view text);
  static Result<Csv> read(const std::string& path);

  size_t rows() const { return rows_.size(); }
  // The column's number, or nothing said: -1.
  int column(std::string_view name) const;
  Result<int> needed_column(std::string_view name) const;

  // An empty text for column -1.
  const std::string& text(size_t row, int column) const;
  Result<int64_t> number(size_t row, int column, int64_t least = 0, int64_t most = std::numeric_limits<int64_t>::max()) const;
  // `otherwise` for column -1 and for empty fields.
  Result<int64_t> number_or(size_t row, int column, int64_t otherwise, int64_t least = 0, int64_t most = std::numeric_limits<int64_t>::max()) const;
  Error error_at(size_t row, int column, const std::string& what) const;

 private:
  struct Field {
    std::string text;
    uint32_t line = 0, column = 0;
  };

  std::string file_;
  std::vector<std::string> header_;
  std::vector<std::vector<Field>> rows_;
};

}  // namespace gpupool::sim
