#include "scheduler/admin/table.h"

#include <algorithm>
#include <numeric>

#include "common/text/names.h"
#include "common/text/printable.h"

namespace gpupool::admin {
namespace {

constexpr size_t kGap = 2;

bool begins_character(char byte) {
  return (byte & 0xc0) != 0x80;
}

}  // namespace

size_t characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string shortened(const std::string& text, size_t most) {
  if (characters(text) <= most) return text;
  if (most == 0) return "";
  size_t end = 0;
  for (size_t count = 0; end < text.size(); ++end) {
    if (begins_character(text[end]) && count++ == most - 1) break;
  }
  return text.substr(0, end) + "…";
}

std::vector<std::string> wrapped(const std::string& text, size_t most) {
  std::vector<std::string> lines;
  for (size_t begin = 0;;) {
    size_t end = begin, blank = begin;  // end of the characters that fit; last blank up to there
    for (size_t count = 0; end < text.size(); ++end) {
      if (text[end] == ' ') blank = end;
      if (begins_character(text[end]) && count++ == most) break;
    }
    if (end == text.size()) {
      lines.push_back(text.substr(begin));
      return lines;
    }
    const bool at_blank = blank != begin;
    lines.push_back(text.substr(begin, (at_blank ? blank : end) - begin));
    begin = at_blank ? blank + 1 : end;
  }
}

void Table::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = printable(cut_text(cell, kMaxCellBytes));
  rows_.push_back(std::move(row));
}

std::string Table::text(size_t width) const {
  std::vector<size_t> shown(columns_.size());
  std::iota(shown.begin(), shown.end(), size_t{0});
  std::vector<size_t> widths(columns_.size());
  for (size_t column = 0; column < columns_.size(); ++column) {
    widths[column] = characters(columns_[column].title);
    for (const auto& row : rows_) widths[column] = std::max(widths[column], characters(row[column]));
  }
  const auto total = [&] {
    size_t sum = 0;
    for (const size_t column : shown) sum += widths[column] + kGap;
    return sum - std::min(sum, kGap);
  };
  while (width != 0 && total() > width) {
    // Truncate the widest column first.
    const auto cuttable = [&](size_t column) {
      return columns_[column].shortest != 0 && widths[column] > columns_[column].shortest ? widths[column]
                                                                                          : 0;
    };
    const auto widest = std::max_element(shown.begin(), shown.end(),
                                         [&](size_t a, size_t b) { return cuttable(a) < cuttable(b); });
    if (cuttable(*widest) != 0) {
      --widths[*widest];
      continue;
    }
    const auto least = std::min_element(shown.begin(), shown.end(), [&](size_t a, size_t b) {
      return columns_[a].importance < columns_[b].importance;
    });
    if (columns_[*least].importance >= 100) break;
    shown.erase(least);
  }
  std::string text;
  const auto add_line = [&](const auto& cell) {
    std::string line;
    for (const size_t column : shown) {
      const std::string content = shortened(cell(column), widths[column]);
      const std::string padding(widths[column] - characters(content), ' ');
      line += columns_[column].right ? padding + content : content + padding;
      line.append(kGap, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](size_t column) { return columns_[column].title; });
  for (const auto& row : rows_) {
    std::vector<std::vector<std::string>> cells(columns_.size());
    size_t height = 1;
    for (const size_t column : shown) {
      cells[column] =
          columns_[column].wraps ? wrapped(row[column], widths[column]) : std::vector{row[column]};
      height = std::max(height, cells[column].size());
    }
    for (size_t line = 0; line < height; ++line) {
      add_line(
          [&](size_t column) { return line < cells[column].size() ? cells[column][line] : std::string(); });
    }
  }
  return text;
}

}  // namespace gpupool::admin
