// The DRA driver on a node: the kubelet finds it by a socket in plugins_registry/, and calls it on another
// one to prepare the claims of a pod before its containers start. Owned by the node's main thread, which
// calls ensure(); gRPC's threads serve the calls.
#pragma once
#include <string>

#include "client/kubernetes/claims.h"
#include "client/kubernetes/unix_server.h"
#include "dra.grpc.pb.h"
#include "registration.grpc.pb.h"

namespace gpupool::kubernetes {

class DraPlugin {
 public:
  DraPlugin(const std::string& kubelet_folder, const std::string& driver, Claims& claims);
  // Listens, again if a socket was removed.
  Result<void> ensure();

 private:
  class Registration final : public pluginregistration::Registration::Service {
   public:
    Registration(std::string driver, std::string endpoint)
        : driver_(std::move(driver)), endpoint_(std::move(endpoint)) {}
    grpc::Status GetInfo(grpc::ServerContext*, const pluginregistration::InfoRequest*,
                         pluginregistration::PluginInfo* reply) override;
    grpc::Status NotifyRegistrationStatus(grpc::ServerContext*, const pluginregistration::RegistrationStatus*,
                                          pluginregistration::RegistrationStatusResponse*) override;

   private:
    const std::string driver_, endpoint_;
  };
  class Driver final : public k8s::io::kubelet::pkg::apis::dra::v1::DRAPlugin::Service {
   public:
    explicit Driver(Claims& claims) : claims_(claims) {}
    grpc::Status NodePrepareResources(
        grpc::ServerContext*, const k8s::io::kubelet::pkg::apis::dra::v1::NodePrepareResourcesRequest*,
        k8s::io::kubelet::pkg::apis::dra::v1::NodePrepareResourcesResponse*) override;
    grpc::Status NodeUnprepareResources(
        grpc::ServerContext*, const k8s::io::kubelet::pkg::apis::dra::v1::NodeUnprepareResourcesRequest*,
        k8s::io::kubelet::pkg::apis::dra::v1::NodeUnprepareResourcesResponse*) override;

   private:
    Claims& claims_;
  };

  const std::string endpoint_;
  Registration registration_;
  Driver driver_;
  UnixServer driver_server_;
  UnixServer registration_server_;
};

}  // namespace gpupool::kubernetes
