// A connection to poold itself, beside sessions: no worker is taken for it. What it is for, the hello says.
#pragma once
#include <chrono>
#include <memory>

#include "client/lease/file.h"
#include "client/settings.h"
#include "protocol/control/hello_codec.h"
#include "protocol/transport/transport.h"

namespace gpupool::client {

// `wish`: the introduction, and what the connection is for. Blocks for `patience` and the time that connecting may take.
Result<std::unique_ptr<transport::Connection>> connect_to_poold(const Settings& settings, const LeasedServer& server, hello::Hello wish,
                                                                std::chrono::milliseconds patience, hello::HelloReply* reply);

}  // namespace gpupool::client
