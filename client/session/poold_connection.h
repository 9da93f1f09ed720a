// Opens a connection to poold itself, beside the sessions, without a worker. Used for checkpoints and NVML;
// the hello says which. Any thread.
#pragma once
#include <chrono>
#include <memory>

#include "client/lease/file.h"
#include "client/process/settings.h"
#include "protocol/control/hello_codec.h"
#include "protocol/transport/transport.h"

namespace gpupool::client {

// `hello`: the introduction, with the purpose of the connection set. Blocks for at most the time to connect
// plus `patience`.
Result<std::unique_ptr<transport::Connection>> connect_to_poold(const Settings& settings,
                                                                const LeasedServer& server,
                                                                hello::Hello hello,
                                                                std::chrono::milliseconds patience,
                                                                hello::HelloReply* reply);

}  // namespace gpupool::client
