// The opening of a connection, from its client's side: Preamble and Hello out, Preamble and HelloReply in.
#pragma once
#include "protocol/control/hello_codec.h"
#include "protocol/transport/transport.h"

namespace gpupool::hello {

// Blocks until the server has said that it takes the connection; its refusal is ErrorCode::refused, with its reason.
// receive_reply() is the second half.
Result<HelloReply> exchange(transport::Connection& connection, const Hello& hello, transport::Deadline deadline);
Result<HelloReply> receive_reply(transport::Connection& connection, transport::Deadline deadline);

}  // namespace gpupool::hello
