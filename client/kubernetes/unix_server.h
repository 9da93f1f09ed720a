// gRPC services on a Unix socket in a folder of the kubelet. Owned by the plugins; ensure() is called by the
// main thread, the services by gRPC's.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::kubernetes {

class UnixServer {
 public:
  UnixServer(std::string path, std::vector<grpc::Service*> services);
  // Ends running calls.
  ~UnixServer();
  // Listens, again if the socket was removed. Returns true if it is a new one. ErrorCode::unavailable: it
  // cannot listen.
  Result<bool> ensure();
  const std::string& path() const { return path_; }

 private:
  void stop();

  const std::string path_;
  const std::vector<grpc::Service*> services_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace gpupool::kubernetes
