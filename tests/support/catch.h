// Catch2 2 and 3 have different headers; tests include this one.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // global in Catch2 2
#else
#include <catch2/catch.hpp>
#endif
