// pool-cdi: writes a specification of the Container Device Interface, with which container engines give
// programs in containers the GPUs of a server or a pool: podman run --device gpupool.dev/gpu=NAME.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "client/cdi/device.h"
#include "client/cdi/file.h"
#include "client/cdi/specification.h"
#include "client/run/environment.h"
#include "client/run/request.h"
#include "common/settings/command_line.h"
#include "common/version.h"
#include "protocol/environment.h"

namespace {

using namespace gpupool;
using namespace gpupool::cdi;
namespace fs = std::filesystem;

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr const char* kDefaultFile = "/etc/cdi/gpupool.json";

constexpr const char* kFooter =
    "For a pool:// address, --gpus N, --compute PERCENT, --memory SIZE and the other options of pool-run\n"
    "request resources; each container acquires a lease of its own.\n"
    "\n"
    "A device replaces these variables of the image, and of the options -e and --env: GPUPOOL...,\n"
    "NCCL_SHM_DISABLE, NCCL_P2P_LEVEL, NCCL_HOSTID, LD_LIBRARY_PATH (not with --system-folders) and\n"
    "PYTHONPATH (only with --jax). Give a container one device of gpupool.\n"
    "\n"
    "Exit status: 0: success; 1: a file cannot be used, or there is no such device; 2: wrong usage.";

struct Arguments {
  DeviceOptions device;
  std::string request_query;
  std::string output = kDefaultFile;
  bool remove = false;
  std::string removed;
  bool list = false;
};

int fail(const Error& error) {
  std::fprintf(stderr, "pool-cdi: %s\n", error.message.c_str());
  return error.code == ErrorCode::invalid ? kExitUsage : kExitFailed;
}

bool print(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

void add_options(CLI::App& app, Arguments& arguments) {
  DeviceOptions& device = arguments.device;
  app.set_version_flag("--version", std::string("pool-cdi ") + kVersion);
  app.footer(kFooter);
  app.add_option("--name", device.name, "Name of the device in --device gpupool.dev/gpu=NAME [all]");
  app.add_option(
      "--server", device.server,
      "Address of a poold, a comma-separated list, or pool://SCHEDULER:PORT; default: $GPUPOOL. The folder "
      "of shm:///PATH is mounted in containers");
  app.add_option(
      "--token-file", device.token_file,
      "File with the tenant's token, which is mounted in containers; their user must be able to read it");
  app.add_option("--tls-ca", device.tls_ca, "Certificate authorities of the server (PEM), mounted likewise");
  app.add_option("--tls-cert", device.tls_certificate, "The client's certificate (PEM), mounted likewise");
  app.add_option("--tls-key", device.tls_key, "Private key of the certificate (PEM), mounted likewise");
  app.add_option("--env", device.variables, "NAME=VALUE: a further variable; may be repeated")->take_all();
  app.add_option("--library-path", device.library_path,
                 "Absolute paths of folders of the image to search after gpupool's: for images that set "
                 "LD_LIBRARY_PATH themselves");
  app.add_flag(
      "--system-folders", device.system_folders,
      "Mount libcuda.so.1 and libnvidia-ml.so.1 in the dynamic linker's folders, and leave LD_LIBRARY_PATH "
      "as the image sets it");
  app.add_flag("--jax", device.jax, "Set PYTHONPATH to the plugin with which JAX uses the GPUs");
  app.add_option("--output", arguments.output,
                 std::string("File to add the device to, or - for standard output [") + kDefaultFile + "]");
  auto* const removed =
      app.add_option("--remove", arguments.removed, "Remove the device of this name from the file");
  auto* const list = app.add_flag("--list", arguments.list, "List the devices in the file and their servers");
  list->excludes(removed);
}

// Reads the command line. Returns -1 to continue, else the exit status.
int read_arguments(char** words, Arguments& arguments) {
  CLI::App app{
      "Writes a CDI specification, with which podman, Docker and others give containers the GPUs of a "
      "gpupool "
      "server or pool.",
      "pool-cdi"};
  add_options(app, arguments);
  std::vector<std::string> rest;
  for (++words; *words != nullptr; ++words) {
    const auto request = run::parse_request_option(words);
    if (!request) return fail(request.error());
    if (request->has_value())
      arguments.request_query += (arguments.request_query.empty() ? "" : "&") + **request;
    else
      rest.emplace_back(*words);
  }
  std::reverse(rest.begin(), rest.end());  // CLI11 takes words from the end
  try {
    app.parse(rest);
    arguments.remove = app.count("--remove") > 0;  // its value may be empty by mistake
  } catch (const CLI::ParseError& wrong) {
    if (wrong.get_exit_code() == 0) return app.exit(wrong);
    return fail({ErrorCode::invalid, settings::describe_usage_error(app, wrong) + "; see pool-cdi --help"});
  }
  return -1;
}

Result<void> complete(Arguments& arguments) {
  DeviceOptions& device = arguments.device;
  const fs::path output = arguments.output;
  if (arguments.output != "-" && output.extension() != ".json")
    return Error{ErrorCode::invalid, "--output: '" + arguments.output +
                                         "' must end in .json, because container engines read no other file"};
  const bool changes_nothing = arguments.list || arguments.remove;
  if (arguments.output == "-" && changes_nothing)
    return Error{ErrorCode::invalid, "--list and --remove need the file of --output"};
  if (changes_nothing) return {};
  if (device.server.empty()) device.server = environment_text("GPUPOOL");
  if (device.server.empty()) {
    return Error{ErrorCode::invalid,
                 "no server given; use --server tcp://HOST:PORT or pool://SCHEDULER:PORT, or set GPUPOOL"};
  }
  if (!arguments.request_query.empty() && !device.server.starts_with("pool://")) {
    return Error{ErrorCode::invalid,
                 "--" + arguments.request_query.substr(0, arguments.request_query.find('=')) +
                     " requires a pool; use --server pool://HOST:PORT instead of '" + device.server + "'"};
  }
  device.server = run::with_request(device.server, arguments.request_query);
  return {};
}

int list_devices(const std::string& path) {
  const auto text = read_file(path);
  if (!text) return fail(text.error());
  if (!text->has_value()) return fail({ErrorCode::unavailable, path + " does not exist: no devices"});
  const auto specification = Specification::parse(**text, path);
  if (!specification) return fail(specification.error());
  std::string lines;
  for (const auto& [name, server] : specification->devices())
    lines.append(kKind).append("=").append(name).append("\t").append(server).append("\n");
  return print(lines) ? 0 : kExitFailed;
}

// Reads the specification of the file, which may be absent.
Result<Specification> specification_of(const std::optional<std::string>& present, const std::string& path) {
  return present ? Specification::parse(*present, path) : Specification();
}

Result<void> remove_device(const std::string& path, const std::string& name) {
  return update_file(path, false, [&](const auto& present) -> Result<std::optional<std::string>> {
    auto specification = specification_of(present, path);
    if (!specification) return specification.error();
    if (!specification->remove(name)) {
      return Error{ErrorCode::unavailable,
                   path + " has no device '" + name + "'; pool-cdi --list lists them"};
    }
    if (specification->devices().empty()) return std::optional<std::string>();
    const auto text = specification->text();
    if (!text) return text.error();
    return std::optional(*text);
  });
}

int write_device(const Arguments& arguments) {
  const auto installation = run::find_installation();
  if (!installation) return fail(installation.error());
  const auto described = describe_device(*installation, arguments.device);
  if (!described) return fail(described.error());
  const auto with_device = [&](const std::optional<std::string>& present) -> Result<std::string> {
    auto specification = specification_of(present, arguments.output);
    if (!specification) return specification.error();
    specification->set_common(common_edits(*installation));
    specification->put(described->device);
    return specification->text();
  };
  for (const std::string& note : described->notes) std::fprintf(stderr, "pool-cdi: note: %s\n", note.c_str());
  if (arguments.output == "-") {
    const auto text = with_device(std::nullopt);
    if (!text) return fail(text.error());
    return print(*text) ? 0 : kExitFailed;
  }
  const auto written = update_file(arguments.output, arguments.output == kDefaultFile,
                                   [&](const auto& present) -> Result<std::optional<std::string>> {
                                     const auto text = with_device(present);
                                     if (!text) return text.error();
                                     return std::optional(*text);
                                   });
  if (!written) return fail(written.error());
  return print(std::string(kKind) + "=" + arguments.device.name + "\n") ? 0 : kExitFailed;
}

int execute(char** words) {
  Arguments arguments;
  if (const int status = read_arguments(words, arguments); status >= 0) return status;
  if (const auto completed = complete(arguments); !completed) return fail(completed.error());
  if (arguments.list) return list_devices(arguments.output);
  if (!arguments.remove) return write_device(arguments);
  if (const auto removed = remove_device(arguments.output, arguments.removed); !removed)
    return fail(removed.error());
  return 0;
}

}  // namespace

int main(int, char** words) {
  try {
    return execute(words);
  } catch (const std::exception& failure) {
    return fail({ErrorCode::unavailable, failure.what()});
  }
}
