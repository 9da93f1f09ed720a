// What most test files include, compiled once (gpupool_precompile_headers() in cmake/tests.cmake). A test
// includes what it uses all the same, since not all builds precompile.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
