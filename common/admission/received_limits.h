// Limits for what a gRPC client receives from a server that may be hostile. Used by all of this tree's
// clients; any thread.
#pragma once
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <cstddef>

namespace gpupool {

// A message above the limit fails its call. gRPC compares a message with its limit once it has received all
// of it, which may be 4 GiB; it ends the call earlier if the channel's quota of memory is exhausted.
inline void limit_received(grpc::ChannelArguments& arguments, int most_message_bytes) {
  constexpr size_t kOther = size_t{8} << 20;  // for the connection and other calls
  arguments.SetMaxReceiveMessageSize(most_message_bytes);
  arguments.SetResourceQuota(
      grpc::ResourceQuota("received").Resize(kOther + 2 * static_cast<size_t>(most_message_bytes)));
}

}  // namespace gpupool
