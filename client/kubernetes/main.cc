// gpupool-kubernetes: gives pods of Kubernetes GPUs of a pool. `node` runs on each node, `controller` once in
// a cluster; see gpupool-kubernetes --help and docs/kubernetes.md.
//
// SIGTERM ends it at once. Leases are not returned then: pods go on, and the next process resumes the leases.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "client/kubernetes/claims.h"
#include "client/kubernetes/controller.h"
#include "client/kubernetes/device_plugin.h"
#include "client/kubernetes/dra_plugin.h"
#include "client/kubernetes/host_files.h"
#include "client/kubernetes/options.h"
#include "common/log/log.h"
#include "common/version.h"

namespace {

using namespace gpupool;
using namespace gpupool::kubernetes;

constexpr int kExitFailed = 1;
constexpr timespec kSecond{1, 0};

int fail(const Error& error) {
  std::fprintf(stderr, "gpupool-kubernetes: %s\n", error.message.c_str());
  return kExitFailed;
}

// Waits for a signal that ends the process. Returns false at the end of the time.
bool is_ended(timespec within) {
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGTERM, SIGINT}) ::sigaddset(&ends, signal);
  return ::sigtimedwait(&ends, nullptr, &within) > 0;
}

void block_signals() {
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGTERM, SIGINT}) ::sigaddset(&ends, signal);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // threads inherit it
  (void)::signal(SIGPIPE, SIG_IGN);
}

// Logs a failure when it begins or changes.
void note(const Result<void>& result, std::string& last) {
  const std::string now = result ? "" : result.error().message;
  if (now != last && !result) log::error("not_listening", {{"error", now}});
  last = now;
}

int run_node(const Options& options) {
  auto store = ClaimStore::open(options.state_folder);
  if (!store) return fail(store.error());
  const auto own = run::find_installation();
  if (!own) return fail(own.error());
  const auto installation = copy_installation(*own, options.state_folder);
  if (!installation) return fail(installation.error());
  const auto container_ca = copy_file(options.driver.tls.ca, options.state_folder, "ca.pem");
  if (!container_ca) return fail(container_ca.error());
  const ApiServer api(options.api);
  Claims claims({.driver = options.driver,
                 .node = options.node_name,
                 .prepare_wait = std::chrono::seconds(options.prepare_wait),
                 .unused_interval = std::chrono::seconds(options.unused_interval),
                 .cdi_file = options.cdi_file,
                 .installation = *installation,
                 .container_tls_ca = *container_ca},
                api, std::move(*store));
  claims.adopt();
  DraPlugin dra(options.kubelet_folder, options.driver.name, claims);
  std::vector<std::unique_ptr<DevicePlugin>> plugins;
  for (const Resource& resource : options.resources) {
    plugins.push_back(std::make_unique<DevicePlugin>(
        options.kubelet_folder, resource,
        DevicePlugin::Settings{options.driver.server, options.units, options.plugin_token_file, *container_ca,
                               *installation}));
  }
  std::vector<std::string> problems(plugins.size() + 1);
  do {
    if (!options.no_dra) note(dra.ensure(), problems.back());
    for (size_t at = 0; at < plugins.size(); ++at) note(plugins[at]->ensure(), problems[at]);
    claims.keep();
  } while (!is_ended(kSecond));
  log::info("ended", {{"leases", "kept for the next process"}});
  ::_exit(0);  // a destructor would return the leases
}

int run_controller(const Options& options) {
  const ApiServer api(options.api);
  Controller controller({.driver = options.driver,
                         .operator_token_file = options.operator_token_file,
                         .claims_interval = std::chrono::seconds(options.claims_interval),
                         .pool = options.pool,
                         .device_class = options.device_class},
                        api);
  do {
    controller.step();
  } while (!is_ended({static_cast<time_t>(options.interval), 0}));
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    const auto parsed = parse_options(count, words);
    if (const auto* early = std::get_if<EarlyExit>(&parsed)) return early->status;
    const auto& options = std::get<Options>(parsed);
    block_signals();
    log::start(STDERR_FILENO, log::Level::info, options.log_format, "gpupool-kubernetes");
    log::info("started", {{"version", kVersion}, {"as", options.node ? "node" : "controller"}});
    return options.node ? run_node(options) : run_controller(options);
  } catch (const std::exception& failure) {
    return fail({ErrorCode::unavailable, failure.what()});
  }
}
