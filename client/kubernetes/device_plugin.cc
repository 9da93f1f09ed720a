#include "client/kubernetes/device_plugin.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <mutex>

#include "client/kubernetes/tenant.h"
#include "client/run/request.h"
#include "common/log/log.h"
#include "protocol/scheduler/address.h"

namespace gpupool::kubernetes {
namespace {

constexpr std::chrono::seconds kRegisterTimeout{5};

// Returns the name of the socket, which is a file's name: gpupool.dev/gpu becomes gpupool.dev-gpu.sock.
std::string socket_name(std::string resource) {
  std::replace(resource.begin(), resource.end(), '/', '-');
  return resource + ".sock";
}

// Returns a text that changes when the kubelet restarts and makes its socket anew; empty if there is no
// socket.
std::string identity_of(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return "";
  return std::to_string(about.st_ino) + " " + std::to_string(about.st_ctim.tv_sec) + "." +
         std::to_string(about.st_ctim.tv_nsec);
}

// One call of ListAndWatch: sends the list, which never changes, and stays until the kubelet or the server
// ends it, because the kubelet takes the end of the call for the end of the plugin. Deletes itself; gRPC's
// threads.
class UnchangingList final : public grpc::ServerWriteReactor<v1beta1::ListAndWatchResponse> {
 public:
  explicit UnchangingList(v1beta1::ListAndWatchResponse all) : all_(std::move(all)) { StartWrite(&all_); }
  void OnWriteDone(bool ok) override {
    if (!ok) end();
  }
  void OnCancel() override { end(); }
  void OnDone() override { delete this; }

 private:
  void end() {
    std::call_once(ended_, [this] { Finish(grpc::Status::CANCELLED); });
  }

  const v1beta1::ListAndWatchResponse all_;  // used until it was written
  std::once_flag ended_;
};

}  // namespace

Result<Resource> parse_resource(const std::string& text) {
  const size_t colon = text.find(':');
  Resource out{text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1)};
  const size_t slash = out.name.find('/');
  const bool plain = std::all_of(out.name.begin(), out.name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '/';
  });
  if (!plain || slash == std::string::npos || slash == 0 || slash + 1 == out.name.size() ||
      out.name.find('/', slash + 1) != std::string::npos)
    return Error{ErrorCode::invalid, "'" + out.name + "' is not a resource's name, such as gpupool.dev/gpu"};
  if (const auto parsed = pool::parse_pool_address("pool://host?gpus=1&" + out.terms); !parsed)
    return Error{ErrorCode::invalid, out.name + ": " + parsed.error().message};
  return out;
}

DevicePlugin::DevicePlugin(const std::string& kubelet_folder, Resource resource, const Settings& settings)
    : resource_(std::move(resource)),
      kubelet_socket_(kubelet_folder + "/device-plugins/kubelet.sock"),
      service_(resource_, settings),
      server_(kubelet_folder + "/device-plugins/" + socket_name(resource_.name), {&service_}) {}

Result<void> DevicePlugin::ensure() {
  const auto fresh = server_.ensure();
  if (!fresh) return fresh.error();
  const std::string kubelet = identity_of(kubelet_socket_);
  if (kubelet.empty()) {
    registered_at_.clear();
    return {};  // the kubelet is not running
  }
  if (!*fresh && kubelet == registered_at_) return {};
  registered_at_.clear();
  if (const auto added = add_to_kubelet(); !added) return added;
  registered_at_ = kubelet;
  log::info("registered_at_kubelet", {{"resource", resource_.name}});
  return {};
}

Result<void> DevicePlugin::add_to_kubelet() {
  const auto stub = v1beta1::Registration::NewStub(
      grpc::CreateChannel("unix://" + kubelet_socket_, grpc::InsecureChannelCredentials()));
  v1beta1::RegisterRequest request;
  request.set_version("v1beta1");
  request.set_endpoint(std::filesystem::path(server_.path()).filename());
  request.set_resource_name(resource_.name);
  request.mutable_options();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kRegisterTimeout);
  v1beta1::Empty reply;
  const grpc::Status status = stub->Register(&context, request, &reply);
  if (status.ok()) return {};
  return Error{ErrorCode::unavailable,
               "the kubelet does not register " + resource_.name + ": " + status.error_message()};
}

grpc::Status DevicePlugin::Service::GetDevicePluginOptions(grpc::ServerContext*, const v1beta1::Empty*,
                                                           v1beta1::DevicePluginOptions*) {
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1beta1::ListAndWatchResponse>* DevicePlugin::Service::ListAndWatch(
    grpc::CallbackServerContext*, const v1beta1::Empty*) {
  v1beta1::ListAndWatchResponse all;
  for (unsigned number = 0; number < settings_.units; ++number) {
    v1beta1::Device& device = *all.add_devices();
    device.set_id("unit-" + std::to_string(number));
    device.set_health("Healthy");
  }
  return new UnchangingList(std::move(all));
}

grpc::Status DevicePlugin::Service::Allocate(grpc::ServerContext*, const v1beta1::AllocateRequest* request,
                                             v1beta1::AllocateResponse* reply) {
  for (const auto& container : request->container_requests()) {
    const auto described = describe(container.devices_ids_size(), *reply->add_container_responses());
    if (described) continue;
    log::error("not_allocated", {{"resource", resource_.name}, {"error", described.error().message}});
    return {grpc::StatusCode::INTERNAL, described.error().message};
  }
  return grpc::Status::OK;
}

// The token is a variable and not a mounted file, because users of containers differ.
Result<void> DevicePlugin::Service::describe(int gpus, v1beta1::ContainerAllocateResponse& reply) const {
  cdi::DeviceOptions options;
  options.server =
      run::with_request(run::with_request(settings_.server, "gpus=" + std::to_string(gpus)), resource_.terms);
  options.tls_ca = settings_.tls_ca;
  const auto described = cdi::describe_device(settings_.installation, options);
  if (!described) return described.error();
  for (const cdi::Edits& edits : {described->device.edits, cdi::common_edits(settings_.installation)}) {
    for (const auto& [name, value] : edits.variables) (*reply.mutable_envs())[name] = value;
    for (const cdi::Mount& mount : edits.mounts) {
      v1beta1::Mount& one = *reply.add_mounts();
      one.set_host_path(mount.host_path);
      one.set_container_path(mount.container_path);
      one.set_read_only(true);
    }
  }
  if (settings_.token_file.empty()) return {};
  const auto token = read_token(settings_.token_file);
  if (!token) return token.error();
  (*reply.mutable_envs())["GPUPOOL_TOKEN"] = *token;
  return {};
}

}  // namespace gpupool::kubernetes
