// Tests of share prices and hole worths against dual prices computed by hand.
#include "scheduler/placement/packing.h"

#include "tests/support/catch.h"

using namespace gpupool::placement;

namespace {

std::vector<double> rounded(std::vector<double> prices) {
  for (double& price : prices) price = std::round(price * 1e6) / 1e6;
  return prices;
}

}  // namespace

TEST_CASE("requests of one size split the price of a GPU") {
  CHECK(rounded(share_prices({{470, 1}})) == std::vector<double>{0.5});
  CHECK(rounded(share_prices({{810, 1}})) == std::vector<double>{1.0});
  CHECK(rounded(share_prices({{320, 3}})) == std::vector<double>{0.333333});
}

TEST_CASE("the rarer of two complementary sizes is free") {
  // 190 fits beside 810: ten shares of 810 need ten GPUs with or without the 190s.
  CHECK(rounded(share_prices({{190, 5}, {810, 10}})) == std::vector<double>{0, 1});
  // More 190s than 810s: the remaining 190s fit five to a GPU, so each costs 0.2 and a share of 810 the other
  // 0.8.
  CHECK(rounded(share_prices({{190, 20}, {810, 10}})) == std::vector<double>{0.2, 0.8});
}

TEST_CASE("the value of a free share is that of the requests that fit it") {
  const HoleWorth worth = hole_worth({{470, 10}, {810, 10}});
  CHECK(worth[0] == 0);
  CHECK(worth[190] == 0);  // nothing fits
  CHECK(worth[469] == 0);
  CHECK(worth[470] == 0.5f);
  CHECK(worth[530] == 0.5f);
  CHECK(worth[1000] == 1);
  CHECK(std::is_sorted(worth.begin(), worth.end()));
}

TEST_CASE("without share requests only whole GPUs have a value") {
  const HoleWorth worth = hole_worth({});
  CHECK(worth[999] == 0);
  CHECK(worth[1000] == 1);
}

TEST_CASE("requests that fit one GPU never cost more than one GPU") {
  // Check the constraints of the dual for the sizes of a real trace.
  const std::vector<ShareSize> sizes = {{50, 18},   {110, 30},  {160, 96},  {220, 79},  {230, 163},
                                        {320, 414}, {370, 52},  {460, 177}, {470, 952}, {480, 20},
                                        {550, 101}, {590, 113}, {650, 361}, {810, 1393}};
  const std::vector<double> prices = share_prices(sizes);
  double gpus = 0;
  for (size_t i = 0; i < sizes.size(); ++i) gpus += prices[i] * sizes[i].frequency;
  const HoleWorth worth = hole_worth(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (size_t j = 0; j < sizes.size(); ++j) {
      if (sizes[i].milli + sizes[j].milli <= kWholeGpu) CHECK(prices[i] + prices[j] <= 1 + 1e-6);
    }
    CHECK(worth[sizes[i].milli] >= prices[i] - 1e-6);
  }
  // Lower bound: one GPU for each 810, half a GPU for each 460, 470 and 480, which fit two to a GPU.
  CHECK(gpus >= 1393 + (177 + 952 + 20) / 2.0 - 1e-6);
}
