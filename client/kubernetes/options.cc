#include "client/kubernetes/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "common/settings/command_line.h"
#include "common/version.h"
#include "protocol/environment.h"
#include "protocol/scheduler/address.h"

namespace gpupool::kubernetes {
namespace {

constexpr int kExitUsage = 2;
constexpr const char* kAccount = "/var/run/secrets/kubernetes.io/serviceaccount/";

struct Words {
  std::string log_format = "text";
  std::vector<std::string> resources;
};

void add_common_options(CLI::App& app, Options& options, Words& words) {
  app.add_option("--server", options.driver.server,
                 "The pool: pool://HOST:PORT[,HOST:PORT...][?insecure=1] [$GPUPOOL]");
  app.add_option("--tls-ca", options.driver.tls.ca, "CA certificates of the schedulers and poolds (PEM)");
  app.add_option("--driver", options.driver.name, "Name of the DRA driver [gpupool.dev]");
  app.add_option("--token-secret", options.driver.tenant.secret,
                 "Name of the Secret with a namespace's token, in its key `token` [gpupool-token]");
  app.add_option("--token-file", options.driver.tenant.default_token_file,
                 "File with the token of namespaces without the Secret");
  app.add_option("--api-server", options.api.url, "URL of the API server [that of the cluster]");
  app.add_option("--api-token-file", options.api.token_file, "File with its token [of the service account]");
  app.add_option("--api-ca", options.api.ca_file, "CA certificates of the API server (PEM) [likewise]");
  app.add_option("--log-format", words.log_format, "text or json [text]")
      ->check(CLI::IsMember({"text", "json"}));
}

void add_node_options(CLI::App& app, Options& options, Words& words) {
  app.add_option("--node-name", options.node_name, "Name of this node in Kubernetes [$NODE_NAME]");
  app.add_option("--kubelet-folder", options.kubelet_folder, "The kubelet's folder [/var/lib/kubelet]");
  app.add_option("--state-folder", options.state_folder,
                 "Folder for claims and for files of containers, at the same path on the host "
                 "[/var/lib/gpupool-kubernetes]");
  app.add_option("--cdi-file", options.cdi_file,
                 "CDI specification to write [/var/run/cdi/gpupool-kubernetes.json]");
  app.add_option("--prepare-wait", options.prepare_wait,
                 "Seconds that the kubelet waits for a lease before it tries again [20]")
      ->check(CLI::Range(1, 40));
  app.add_option(
         "--unused-interval", options.unused_interval,
         "Seconds between two looks at whether claims are still used; the lease of a claim that is not, "
         "twice in a row, is returned [30]")
      ->check(CLI::Range(1, 3600));
  app.add_flag("--no-dra", options.no_dra, "No DRA driver, for clusters older than Kubernetes 1.34");
  app.add_option(
         "--resource", words.resources,
         "NAME[:TERMS], for example gpupool.dev/half-gpu:compute=50: a resource of the device plugin, "
         "and what one of it is; may be repeated")
      ->take_all();
  app.add_option("--device-plugin-token-file", options.plugin_token_file,
                 "File with the token of the device plugin's containers, which can all read it");
  app.add_option("--units", options.units, "Number of each resource on this node [64]")
      ->check(CLI::Range(1, 10'000));
}

void add_controller_options(CLI::App& app, Options& options) {
  app.add_option("--operator-token-file", options.operator_token_file,
                 "File with an operator's token, to list the pool's GPUs");
  app.add_option("--pool-name", options.pool, "Name of the pool in ResourceSlices [gpupool]");
  app.add_option("--device-class", options.device_class,
                 "DeviceClass whose claims are checked [gpupool.dev]");
  app.add_option("--interval", options.interval, "Seconds between two looks at the pool's GPUs [2]")
      ->check(CLI::Range(1, 3600));
  app.add_option(
         "--claims-interval", options.claims_interval,
         "Seconds between two looks at the cluster's claims, which the API server lists all each time [15]")
      ->check(CLI::Range(1, 3600));
}

// Returns what is wrong; empty: nothing.
std::string complete(Options& options, const Words& words) {
  if (options.driver.server.empty()) options.driver.server = environment_text("GPUPOOL");
  if (options.driver.server.empty()) return "--server is missing: the pool's pool://HOST:PORT";
  if (const auto parsed = pool::parse_pool_address(options.driver.server); !parsed)
    return "--server: " + parsed.error().message;
  (void)log::parse(words.log_format, options.log_format);
  if (options.node_name.empty()) options.node_name = environment_text("NODE_NAME");
  if (options.node && options.node_name.empty()) return "--node-name is missing, and NODE_NAME is not set";
  for (const std::string& word : words.resources) {
    auto resource = parse_resource(word);
    if (!resource) return "--resource: " + resource.error().message;
    options.resources.push_back(std::move(*resource));
  }
  if (options.node && options.no_dra && options.resources.empty())
    return "--no-dra needs a --resource: there is nothing to do";
  for (const auto& [name, path] :
       {std::pair{"--kubelet-folder", options.kubelet_folder},
        std::pair{"--state-folder", options.state_folder}, std::pair{"--cdi-file", options.cdi_file}}) {
    if (!path.starts_with("/")) return std::string(name) + ": '" + path + "' must be an absolute path";
  }
  const std::string host = environment_text("KUBERNETES_SERVICE_HOST");
  if (!options.api.url.empty()) return "";
  if (host.empty()) return "--api-server is missing: this is no pod of Kubernetes";
  const std::string port = environment_text("KUBERNETES_SERVICE_PORT");
  options.api.url = "https://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
                    (port.empty() ? "443" : port);
  if (options.api.token_file.empty()) options.api.token_file = std::string(kAccount) + "token";
  if (options.api.ca_file.empty()) options.api.ca_file = std::string(kAccount) + "ca.crt";
  return "";
}

}  // namespace

std::variant<Options, EarlyExit> parse_options(int count, char** words) {
  Options options;
  Words its;
  CLI::App app{"Gives pods of Kubernetes GPUs of a gpupool pool.", "gpupool-kubernetes"};
  app.set_version_flag("--version", std::string("gpupool-kubernetes ") + kVersion);
  app.require_subcommand(1);
  CLI::App* const node =
      app.add_subcommand("node", "On each node: the kubelet's DRA driver and device plugin");
  CLI::App* const controller =
      app.add_subcommand("controller", "Once in a cluster: publishes the pool's GPUs, and checks claims");
  for (CLI::App* const one : {node, controller}) add_common_options(*one, options, its);
  add_node_options(*node, options, its);
  add_controller_options(*controller, options);
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& wrong) {
    if (wrong.get_exit_code() == 0) return EarlyExit{app.exit(wrong)};
    std::fprintf(stderr, "gpupool-kubernetes: %s; see gpupool-kubernetes --help\n",
                 settings::describe_usage_error(app, wrong).c_str());
    return EarlyExit{kExitUsage};
  }
  options.node = node->parsed();
  const std::string why = complete(options, its);
  if (why.empty()) return options;
  std::fprintf(stderr, "gpupool-kubernetes: %s\n", why.c_str());
  return EarlyExit{kExitUsage};
}

}  // namespace gpupool::kubernetes
