// The device library of tests of poold that need no real device: fake_device.cc.
#pragma once
#include <string>

namespace gpupool::testing {

inline const std::string kDevice = FAKE_DEVICE_LIBRARY;

}  // namespace gpupool::testing
