// Opens a connection from the client's side: sends Preamble and Hello, receives Preamble and HelloReply. Used
// by the client libraries and, for peers, by workers. Blocks the calling thread until the deadline.
#pragma once
#include "protocol/control/hello_codec.h"
#include "protocol/transport/transport.h"

namespace gpupool::hello {

// Sends the hello and waits for the reply. ErrorCode::refused, with the server's reason, if the server
// rejects the connection, or ErrorCode::suspended until it resumes a lease or session. Texts in the reply are
// printable.
Result<HelloReply> exchange(transport::Connection& connection, const Hello& hello,
                            transport::Deadline deadline);
// The same, but returns the replies of a server that rejects the connection only for now: status busy,
// no_device or suspended.
Result<HelloReply> exchange_patiently(transport::Connection& connection, const Hello& hello,
                                      transport::Deadline deadline);
// Waits for the reply to a hello that has been sent; fails as exchange() does.
Result<HelloReply> receive_reply(transport::Connection& connection, transport::Deadline deadline);

}  // namespace gpupool::hello
