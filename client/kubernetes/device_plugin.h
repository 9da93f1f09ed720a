// A device plugin (v1beta1) for clusters without dynamic resource allocation: containers with N of a resource
// get the client library, and an address with a request for N GPUs, whose lease each program takes when it
// starts. It keeps no state.
//
// Owned by the node's main thread, which calls ensure(); gRPC's threads serve the calls.
#pragma once
#include <string>

#include "client/cdi/device.h"
#include "client/kubernetes/unix_server.h"
#include "device_plugin.grpc.pb.h"

namespace gpupool::kubernetes {

// A resource of nodes, and what one of it means.
struct Resource {
  std::string name;   // gpupool.dev/gpu
  std::string terms;  // of the request, for example compute=50; may be empty
};
// Parses NAME or NAME:TERMS. ErrorCode::invalid: not a name of a resource, or wrong terms.
Result<Resource> parse_resource(const std::string& text);

class DevicePlugin {
 public:
  struct Settings {
    std::string server;      // pool://
    unsigned units = 64;     // of each resource on this node
    std::string token_file;  // of the tenant of all containers; empty: none
    std::string tls_ca;      // as in Claims
    run::Installation installation;
  };
  DevicePlugin(const std::string& kubelet_folder, Resource resource, const Settings& settings);
  // Listens and registers, again after the kubelet was started again.
  Result<void> ensure();

 private:
  // The kubelet keeps a call of ListAndWatch for as long as it runs: it has no thread of its own.
  class Service final
      : public v1beta1::DevicePlugin::WithCallbackMethod_ListAndWatch<v1beta1::DevicePlugin::Service> {
   public:
    Service(Resource resource, const Settings& settings)
        : resource_(std::move(resource)), settings_(settings) {}
    grpc::Status GetDevicePluginOptions(grpc::ServerContext*, const v1beta1::Empty*,
                                        v1beta1::DevicePluginOptions*) override;
    grpc::ServerWriteReactor<v1beta1::ListAndWatchResponse>* ListAndWatch(grpc::CallbackServerContext*,
                                                                          const v1beta1::Empty*) override;
    grpc::Status Allocate(grpc::ServerContext*, const v1beta1::AllocateRequest* request,
                          v1beta1::AllocateResponse* reply) override;

   private:
    Result<void> describe(int gpus, v1beta1::ContainerAllocateResponse& reply) const;
    const Resource resource_;
    const Settings settings_;
  };

  Result<void> add_to_kubelet();

  const Resource resource_;
  const std::string kubelet_socket_;
  Service service_;
  UnixServer server_;
  std::string registered_at_;  // identifies the kubelet's socket; empty: not registered
};

}  // namespace gpupool::kubernetes
