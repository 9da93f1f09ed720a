#include "scheduler/sim/csv.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <system_error>

namespace gpupool::sim {
namespace {

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 40;
  std::string shown = "'";
  for (const char c : text.substr(0, kShown)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (text.size() > kShown ? "...'" : "'");
}

}  // namespace

Result<Csv> Csv::parse(std::string file, std::string_view text) {
  Csv csv;
  csv.file_ = std::move(file);
  uint32_t line = 1, column = 1;
  const auto fail = [&](uint32_t at_line, uint32_t at_column, const std::string& what) {
    return Error{ErrorCode::malformed,
                 csv.file_ + ":" + std::to_string(at_line) + ":" + std::to_string(at_column) + ": " + what};
  };
  std::vector<Field> row;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // UTF-8 byte order mark
  size_t at = 0;
  const auto next = [&] {
    if (text[at] == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
    return text[at++];
  };
  while (at < text.size()) {
    Field field{{}, line, column};
    if (text[at] == '"') {
      next();
      for (;;) {
        if (at == text.size()) return fail(field.line, field.column, "unterminated quoted field");
        const char c = next();
        if (c == '\0') return fail(line, column - 1, "a zero byte");
        if (c != '"') {
          field.text += c;
        } else if (at < text.size() && text[at] == '"') {
          field.text += next();
        } else {
          break;
        }
      }
      if (at < text.size() && text[at] != ',' && text[at] != '\n' && text[at] != '\r')
        return fail(line, column, "text after a closing quotation mark");
    } else {
      while (at < text.size() && text[at] != ',' && text[at] != '\n' && text[at] != '\r') {
        if (text[at] == '"') return fail(line, column, "a quotation mark within a field");
        if (text[at] == '\0') return fail(line, column, "a zero byte");
        field.text += next();
      }
    }
    const uint32_t end_line = line, end_column = column;
    row.push_back(std::move(field));
    if (at < text.size() && text[at] == ',') {
      next();
      if (at < text.size() && text[at] != '\n' && text[at] != '\r') continue;
      row.push_back({{}, line, column});  // an empty last field
      if (at == text.size()) return fail(line, column, "the file ends within a line");
    }
    if (at < text.size() && text[at] == '\r') {
      next();
      if (at < text.size() && text[at] != '\n')
        return fail(line, column - 1, "a carriage return within a line");
    }
    if (at < text.size()) next();
    if (row.size() == 1 && row[0].text.empty()) {  // an empty line
      row.clear();
      continue;
    }
    if (csv.header_.empty()) {
      for (const Field& name : row) {
        if (name.text.empty()) return fail(name.line, name.column, "a column without a name");
        if (csv.column(name.text) >= 0)
          return fail(name.line, name.column, "a second column " + quoted(name.text));
        csv.header_.push_back(name.text);
      }
    } else {
      if (row.size() != csv.header_.size()) {
        const bool more = row.size() > csv.header_.size();
        const uint32_t where = more ? row[csv.header_.size()].column : end_column;
        return fail(end_line, where,
                    std::to_string(row.size()) + " fields, but the header names " +
                        std::to_string(csv.header_.size()));
      }
      csv.rows_.push_back(std::move(row));
    }
    row.clear();
  }
  if (csv.header_.empty()) return fail(1, 1, "missing header line");
  return csv;
}

Result<Csv> Csv::read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{ErrorCode::unavailable, path + ": " + std::generic_category().message(errno)};
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad() || !text) return Error{ErrorCode::unavailable, path + ": cannot be read"};
  return parse(path, text.str());
}

int Csv::column(std::string_view name) const {
  const auto found = std::find(header_.begin(), header_.end(), name);
  return found == header_.end() ? -1 : static_cast<int>(found - header_.begin());
}

Result<int> Csv::needed_column(std::string_view name) const {
  const int found = column(name);
  if (found < 0)
    return Error{ErrorCode::malformed, file_ + ":1:1: missing column '" + std::string(name) + "'"};
  return found;
}

const std::string& Csv::text(size_t row, int column) const {
  static const std::string none;
  return column < 0 ? none : rows_[row][column].text;
}

Result<int64_t> Csv::number(size_t row, int column, int64_t least, int64_t most) const {
  const std::string& text = rows_[row][column].text;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size() ||
      (error != std::errc() && error != std::errc::result_out_of_range)) {
    return error_at(row, column, quoted(text) + " is not an integer");
  }
  if (error != std::errc() || value < least || value > most) {
    std::string range = "at least " + std::to_string(least);
    if (most != std::numeric_limits<int64_t>::max())
      range = std::to_string(least) + " to " + std::to_string(most);
    return error_at(row, column, quoted(text) + " must be " + range);
  }
  return value;
}

Result<int64_t> Csv::number_or(size_t row, int column, int64_t otherwise, int64_t least, int64_t most) const {
  if (text(row, column).empty()) return otherwise;
  return number(row, column, least, most);
}

Error Csv::error_at(size_t row, int column, const std::string& what) const {
  const Field& field = rows_[row][std::max(column, 0)];
  const std::string name = column < 0 ? "" : header_[column] + " ";
  return {ErrorCode::malformed,
          file_ + ":" + std::to_string(field.line) + ":" + std::to_string(field.column) + ": " + name + what};
}

}  // namespace gpupool::sim
