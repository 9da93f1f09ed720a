// Why a client is refused: status and reason of its HelloReply.
#pragma once
#include <string>

#include "protocol/control/hello.pb.h"

namespace gpupool::server {

struct Refusal {
  control::HelloReply::Status status = control::HelloReply::BUSY;
  std::string reason;         // one line for the client's user
  std::string moved_to = {};  // HelloReply.moved_to
};

}  // namespace gpupool::server
