// What a partly free GPU is worth to the shares that will be asked for.
//
// Shares of fixed sizes are packed into GPUs of 1000 thousandths: the cutting stock problem. Its linear programme has a dual with a price
// for each size; prices say which sizes make GPUs necessary (price 1: it needs a GPU of its own) and which find room beside others
// (price 0). A hole is worth the dearest set of shares that fits into it. Placing a share so that the least worth is lost keeps
// holes for what needs them: 530 for a second share of 470, not for one of 320 that leaves 210 for nobody. Pure.
#pragma once
#include <array>
#include <vector>

#include "scheduler/placement/request.h"

namespace gpupool::placement {

struct ShareSize {
  int milli = 0;        // 1..999
  double frequency = 0;  // above 0, in any unit
};

// The worth of 0..1000 free thousandths, growing, 1 for a whole GPU. Different sizes, at most a few dozen: time grows with their square.
using HoleWorth = std::array<float, kWholeGpu + 1>;
HoleWorth hole_worth(const std::vector<ShareSize>& sizes);

// The dual prices behind it, in the order of `sizes`.
std::vector<double> share_prices(const std::vector<ShareSize>& sizes);

}  // namespace gpupool::placement
