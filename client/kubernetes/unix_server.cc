#include "client/kubernetes/unix_server.h"

#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

namespace gpupool::kubernetes {

namespace fs = std::filesystem;

UnixServer::UnixServer(std::string path, std::vector<grpc::Service*> services)
    : path_(std::move(path)), services_(std::move(services)) {}

UnixServer::~UnixServer() {
  stop();
}

void UnixServer::stop() {
  if (!server_) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

Result<bool> UnixServer::ensure() {
  std::error_code error;
  if (server_ && fs::is_socket(path_, error)) return false;
  stop();
  if (path_.size() >= sizeof(sockaddr_un::sun_path))
    return Error{ErrorCode::unavailable, "cannot listen on " + path_ + ": the path is too long for a socket"};
  fs::create_directories(fs::path(path_).parent_path(), error);
  ::unlink(path_.c_str());  // left by a process that was killed
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix://" + path_, grpc::InsecureServerCredentials());  // only root reaches it
  for (grpc::Service* const service : services_) builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  if (server_ && fs::is_socket(path_, error)) return true;
  stop();
  return Error{ErrorCode::unavailable, "cannot listen on " + path_ + "; is the kubelet's folder mounted?"};
}

}  // namespace gpupool::kubernetes
