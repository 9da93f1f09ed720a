// Silences libprotobuf, which would print a line for each invalid message, that is, for most inputs.
#pragma once
#include <google/protobuf/stubs/logging.h>

namespace gpupool::fuzz {

inline void quiet_protobuf() {
  static const auto before = google::protobuf::SetLogHandler(nullptr);
  static_cast<void>(before);
}

}  // namespace gpupool::fuzz
