// Defines Catch::Matchers::ContainsSubstring for Catch2 version 2, which calls it Contains.
#pragma once
#include "tests/support/catch.h"

#if !__has_include(<catch2/catch_all.hpp>)
namespace Catch::Matchers {
inline auto ContainsSubstring(const std::string& text) {
  return Contains(text);
}
}  // namespace Catch::Matchers
#endif
