#include "common/text/suggestion.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gpupool {
namespace {

constexpr size_t kLongestWord = 64;
constexpr size_t kShortestPart = 3;  // of a known word, to be suggested for that part

bool are_alike(char a, char b) {
  return a == b || (a == '-' && b == '_') || (a == '_' && b == '-');
}

// The Levenshtein distance; hyphens and underscores are equal.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (are_alike(a[i], b[j]) ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string suggestion(std::string_view word, const std::vector<std::string_view>& known) {
  if (word.empty() || word.size() > kLongestWord) return "";
  std::string_view best;
  size_t least = 1 + word.size() / 3;
  for (const std::string_view candidate : known) {
    if (const size_t changes = distance(word, candidate);
        changes < least || (changes == least && best.empty())) {
      least = changes;
      best = candidate;
    }
  }
  for (const std::string_view candidate : known) {
    if (best.empty() && word.size() >= kShortestPart && candidate.find(word) != candidate.npos)
      best = candidate;
  }
  return best.empty() ? "" : "; did you mean '" + std::string(best) + "'?";
}

}  // namespace gpupool
