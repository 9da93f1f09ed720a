// Catch::Matchers::ContainsSubstring, which Catch2 2 calls Contains.
#pragma once
#include "tests/support/catch.h"

#if !__has_include(<catch2/catch_all.hpp>)
namespace Catch::Matchers {
inline auto ContainsSubstring(const std::string& text) { return Contains(text); }
}  // namespace Catch::Matchers
#endif
