// Why a client is not served: the status and reason of the HelloReply it gets.
#pragma once
#include <string>

#include "protocol/control/hello.pb.h"

namespace gpupool::server {

struct Refusal {
  control::HelloReply::Status status = control::HelloReply::BUSY;
  std::string reason;  // one line for the person at the other end
};

}  // namespace gpupool::server
