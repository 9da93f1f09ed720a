#include "scheduler/placement/packing.h"

#include <algorithm>
#include <cstddef>

namespace gpupool::placement {
namespace {

constexpr double kTolerance = 1e-9;
// Iteration limit. Realistic inputs converge earlier, because few patterns are useful; otherwise the prices
// are approximate.
constexpr int kMaxSteps = 400;

struct Fill {
  std::array<double, kWholeGpu + 1> worth{};
  std::array<int, kWholeGpu + 1> last{};  // size added last; -1: same filling as one thousandth below
};

// Solves the unbounded knapsack problem for every room from 0 to 1000.
Fill best_fill(const std::vector<ShareSize>& sizes, const std::vector<double>& prices) {
  Fill fill;
  fill.last[0] = -1;
  for (int room = 1; room <= kWholeGpu; ++room) {
    fill.worth[room] = fill.worth[room - 1];
    fill.last[room] = -1;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i].milli > room) continue;
      const double worth = fill.worth[room - sizes[i].milli] + prices[i];
      if (worth > fill.worth[room] + 1e-12) {
        fill.worth[room] = worth;
        fill.last[room] = static_cast<int>(i);
      }
    }
  }
  return fill;
}

// Returns how many shares of each size the best filling of a whole GPU holds.
std::vector<double> pattern_of(const Fill& fill, const std::vector<ShareSize>& sizes) {
  std::vector<double> pattern(sizes.size());
  for (int room = kWholeGpu; room > 0;) {
    const int size = fill.last[room];
    if (size < 0) {
      --room;
      continue;
    }
    ++pattern[size];
    room -= sizes[size].milli;
  }
  return pattern;
}

}  // namespace

// Column generation by Gilmore and Gomory: a basis of as many patterns as sizes, stored as its inverse. The
// knapsack finds the pattern with the best reduced cost, and the simplex ratio test the one that leaves.
std::vector<double> share_prices(const std::vector<ShareSize>& sizes) {
  const size_t count = sizes.size();
  std::vector<std::vector<double>> inverse(count, std::vector<double>(count));
  std::vector<double> used(count), prices(count);
  for (size_t i = 0; i < count; ++i) {  // first patterns: a GPU full of one size
    const double copies = static_cast<double>(kWholeGpu / sizes[i].milli);
    inverse[i][i] = 1 / copies;
    used[i] = sizes[i].frequency / copies;
  }
  for (int step = 0; step < kMaxSteps; ++step) {
    for (size_t i = 0; i < count; ++i) {
      prices[i] = 0;
      for (size_t row = 0; row < count; ++row) prices[i] += inverse[row][i];
      if (prices[i] < 0) prices[i] = 0;
    }
    const Fill fill = best_fill(sizes, prices);
    if (fill.worth[kWholeGpu] <= 1 + kTolerance) break;
    const std::vector<double> pattern = pattern_of(fill, sizes);
    std::vector<double> column(count);
    size_t leaves = count;
    double least = 0;
    for (size_t row = 0; row < count; ++row) {
      for (size_t i = 0; i < count; ++i) column[row] += inverse[row][i] * pattern[i];
      if (column[row] <= kTolerance) continue;
      const double ratio = used[row] / column[row];
      if (leaves == count || ratio < least) {
        leaves = row;
        least = ratio;
      }
    }
    if (leaves == count) break;
    for (double& value : inverse[leaves]) value /= column[leaves];
    used[leaves] = least;
    for (size_t row = 0; row < count; ++row) {
      if (row == leaves || column[row] == 0) continue;
      for (size_t i = 0; i < count; ++i) inverse[row][i] -= column[row] * inverse[leaves][i];
      used[row] -= column[row] * least;
    }
  }
  return prices;
}

HoleWorth hole_worth(const std::vector<ShareSize>& sizes) {
  HoleWorth worth{};
  const Fill fill = best_fill(sizes, share_prices(sizes));
  for (int room = 0; room < kWholeGpu; ++room)
    worth[room] = static_cast<float>(std::min(fill.worth[room], 1.0));
  worth[kWholeGpu] = 1;
  return worth;
}

}  // namespace gpupool::placement
