// Includes Catch2, whose headers differ between versions 2 and 3. All tests include this header.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // is global in Catch2 version 2
#else
#include <catch2/catch.hpp>
#endif
