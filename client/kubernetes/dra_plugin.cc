#include "client/kubernetes/dra_plugin.h"

#include <utility>

#include "common/log/log.h"

namespace gpupool::kubernetes {

namespace dra = k8s::io::kubelet::pkg::apis::dra::v1;

DraPlugin::DraPlugin(const std::string& kubelet_folder, const std::string& driver, Claims& claims)
    : endpoint_(kubelet_folder + "/plugins/" + driver + "/dra.sock"),
      registration_(driver, endpoint_),
      driver_(claims),
      driver_server_(endpoint_, {&driver_}),
      registration_server_(kubelet_folder + "/plugins_registry/" + driver + "-reg.sock", {&registration_}) {}

Result<void> DraPlugin::ensure() {
  // The kubelet connects to the second as soon as it sees the first.
  for (UnixServer* const server : {&driver_server_, &registration_server_}) {
    const auto listening = server->ensure();
    if (!listening) return listening.error();
    if (*listening) log::info("listening", {{"socket", server->path()}});
  }
  return {};
}

grpc::Status DraPlugin::Registration::GetInfo(grpc::ServerContext*, const pluginregistration::InfoRequest*,
                                              pluginregistration::PluginInfo* reply) {
  reply->set_type("DRAPlugin");
  reply->set_name(driver_);
  reply->set_endpoint(endpoint_);
  reply->add_supported_versions("v1.DRAPlugin");
  return grpc::Status::OK;
}

grpc::Status DraPlugin::Registration::NotifyRegistrationStatus(
    grpc::ServerContext*, const pluginregistration::RegistrationStatus* status,
    pluginregistration::RegistrationStatusResponse*) {
  if (status->plugin_registered())
    log::info("registered_at_kubelet", {{"driver", driver_}});
  else
    log::error("refused_by_kubelet", {{"driver", driver_}, {"error", status->error()}});
  return grpc::Status::OK;
}

namespace {

ClaimName name_of(const dra::Claim& claim) {
  return {claim.namespace_(), claim.name(), claim.uid()};
}

void describe(const Claims::Prepared& prepared, dra::NodePrepareResourceResponse& reply) {
  for (const AllocatedDevice& one : prepared.devices) {
    dra::Device& device = *reply.add_devices();
    device.add_request_names(one.request);
    device.set_pool_name(one.pool);
    device.set_device_name(one.device);
    device.add_cdi_device_ids(prepared.cdi_device);
  }
}

}  // namespace

grpc::Status DraPlugin::Driver::NodePrepareResources(grpc::ServerContext*,
                                                     const dra::NodePrepareResourcesRequest* request,
                                                     dra::NodePrepareResourcesResponse* reply) {
  const auto deadline = std::chrono::steady_clock::now() + claims_.prepare_wait();
  auto& replies = *reply->mutable_claims();
  // All are requested before the first is awaited.
  for (const dra::Claim& claim : request->claims()) {
    const auto begun = claims_.begin(name_of(claim));
    replies[claim.uid()].set_error(begun ? "" : begun.error().message);
  }
  for (const dra::Claim& claim : request->claims()) {
    dra::NodePrepareResourceResponse& its = replies[claim.uid()];
    if (!its.error().empty()) continue;
    const auto prepared = claims_.finish(name_of(claim), deadline);
    if (prepared)
      describe(*prepared, its);
    else
      its.set_error(prepared.error().message);
  }
  return grpc::Status::OK;
}

grpc::Status DraPlugin::Driver::NodeUnprepareResources(grpc::ServerContext*,
                                                       const dra::NodeUnprepareResourcesRequest* request,
                                                       dra::NodeUnprepareResourcesResponse* reply) {
  for (const dra::Claim& claim : request->claims()) {
    const auto released = claims_.unprepare(name_of(claim));
    (*reply->mutable_claims())[claim.uid()].set_error(released ? "" : released.error().message);
  }
  return grpc::Status::OK;
}

}  // namespace gpupool::kubernetes
