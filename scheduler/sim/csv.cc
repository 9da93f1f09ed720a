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

// Reads fields one by one and counts lines and columns for the error messages.
class Csv::Parser {
 public:
  Parser(Csv& csv, std::string_view text) : csv_(csv), text_(text) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // UTF-8 byte order mark
  }

  Result<void> parse() {
    while (!ended()) {
      Result<Field> field = read_field();
      if (!field) return field.error();
      end_line_ = line_;
      end_column_ = column_;
      row_.push_back(std::move(*field));
      const Result<bool> more = read_separator();
      if (!more) return more.error();
      if (*more) continue;
      if (row_.size() != 1 || !row_[0].text.empty()) {  // not an empty line
        if (Result<void> kept = csv_.header_.empty() ? keep_header() : keep_row(); !kept) return kept;
      }
      row_.clear();
    }
    if (csv_.header_.empty()) return error(1, 1, "missing header line");
    return {};
  }

 private:
  Error error(uint32_t line, uint32_t column, const std::string& what) const {
    return {ErrorCode::malformed,
            csv_.file_ + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " + what};
  }
  bool ended() const { return at_ == text_.size(); }
  bool is_at(char c) const { return !ended() && text_[at_] == c; }
  bool is_at_end_of_field() const { return ended() || is_at(',') || is_at('\n') || is_at('\r'); }
  char next() {
    if (text_[at_] == '\n') {
      ++line_;
      column_ = 1;
    } else {
      ++column_;
    }
    return text_[at_++];
  }

  Result<Field> read_field() {
    Field field{{}, line_, column_};
    if (is_at('"')) return read_quoted(std::move(field));
    while (!is_at_end_of_field()) {
      if (is_at('"')) return error(line_, column_, "a quotation mark within a field");
      if (is_at('\0')) return error(line_, column_, "a zero byte");
      field.text += next();
    }
    return field;
  }

  Result<Field> read_quoted(Field field) {
    next();
    for (;;) {
      if (ended()) return error(field.line, field.column, "unterminated quoted field");
      const char c = next();
      if (c == '\0') return error(line_, column_ - 1, "a zero byte");
      if (c != '"')
        field.text += c;
      else if (is_at('"'))
        field.text += next();
      else
        break;
    }
    if (!is_at_end_of_field()) return error(line_, column_, "text after a closing quotation mark");
    return field;
  }

  // Reads the comma or the end of the line after a field. Returns whether the line has more fields.
  Result<bool> read_separator() {
    if (is_at(',')) {
      next();
      if (!ended() && !is_at('\n') && !is_at('\r')) return true;
      row_.push_back({{}, line_, column_});  // an empty last field
      if (ended()) return error(line_, column_, "the file ends within a line");
    }
    if (is_at('\r')) {
      next();
      if (!ended() && !is_at('\n')) return error(line_, column_ - 1, "a carriage return within a line");
    }
    if (!ended()) next();
    return false;
  }

  Result<void> keep_header() {
    for (const Field& name : row_) {
      if (name.text.empty()) return error(name.line, name.column, "a column without a name");
      if (csv_.column(name.text) >= 0)
        return error(name.line, name.column, "a second column " + quoted(name.text));
      csv_.header_.push_back(name.text);
    }
    return {};
  }

  Result<void> keep_row() {
    const size_t wanted = csv_.header_.size();
    if (row_.size() != wanted) {
      const uint32_t column = row_.size() > wanted ? row_[wanted].column : end_column_;
      return error(end_line_, column,
                   std::to_string(row_.size()) + " fields, but the header names " + std::to_string(wanted));
    }
    csv_.rows_.push_back(std::move(row_));
    return {};
  }

  Csv& csv_;
  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1, column_ = 1;
  uint32_t end_line_ = 1, end_column_ = 1;  // end of the last field that was read
  std::vector<Field> row_;
};

Result<Csv> Csv::parse(std::string file, std::string_view text) {
  Csv csv;
  csv.file_ = std::move(file);
  if (Result<void> parsed = Parser(csv, text).parse(); !parsed) return parsed.error();
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
