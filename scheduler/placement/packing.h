// Computes the worth of a partly free GPU for the share sizes that are requested. Pure functions, used by
// fragmentation.h.
//
// Packing shares of fixed sizes into GPUs of 1000 thousandths is the cutting stock problem. The dual of its
// linear program has a price for each size, from 0 (fits into the gaps that other shares leave) to 1 (needs a
// GPU of its own). A hole is worth the most expensive set of shares that fits into it. Placing a share where
// the least worth is lost keeps holes for the sizes that need them: 530 free thousandths are kept for a
// second share of 470 instead of one of 320, which would leave an unusable 210.
#pragma once
#include <array>
#include <vector>

#include "scheduler/placement/request.h"

namespace gpupool::placement {

struct ShareSize {
  int milli = 0;         // 1..999
  double frequency = 0;  // above 0, in any unit
};

// The worth of 0 to 1000 free thousandths: non-decreasing, 1 for a whole GPU. `sizes` must be distinct, and
// at most a few dozen: the time is quadratic in their number.
using HoleWorth = std::array<float, kWholeGpu + 1>;
HoleWorth hole_worth(const std::vector<ShareSize>& sizes);

// Returns the dual prices, in the order of `sizes`.
std::vector<double> share_prices(const std::vector<ShareSize>& sizes);

}  // namespace gpupool::placement
