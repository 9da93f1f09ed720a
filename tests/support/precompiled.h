// The headers that most tests include. They are compiled once for all tests (cmake/tests.cmake). Tests must
// still include what they use: builds with ccache do not precompile.
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
