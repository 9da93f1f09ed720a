// Keeps libprotobuf from printing a line for each broken message, which is most of what a fuzzer makes.
#pragma once
#include <google/protobuf/stubs/logging.h>

namespace gpupool::fuzz {

inline void quiet_protobuf() {
  static const auto before = google::protobuf::SetLogHandler(nullptr);
  static_cast<void>(before);
}

}  // namespace gpupool::fuzz
