// pool-smi: shows the GPUs that GPUPOOL gives a program, as nvidia-smi shows a machine's own.
//
// It only uses libnvidia-ml.so.1, so it takes no session, worker or GPU memory.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <thread>

#include "client/smi/print.h"
#include "common/settings/command_line.h"
#include "common/version.h"
#include "protocol/environment.h"

namespace {

using namespace gpupool::smi;

constexpr int kExitUsage = 2;
constexpr int kExitNoGpu = 6;  // as nvidia-smi's "not found"
constexpr int kExitNoServer = 9;
constexpr int kExitLost = 15;

struct Arguments {
  std::string server, token_file, format = "csv";
  std::vector<std::string> gpus, columns, process_columns;
  bool list = false, json = false;
  double every = 0;
};

int fail(int status, const std::string& why) {
  std::fprintf(stderr, "pool-smi: %s\n", why.c_str());
  return status;
}

// Returns an error message; empty: success.
std::string read_format(const std::string& format, Csv& csv) {
  std::istringstream words(format);
  for (std::string word; std::getline(words, word, ',');) {
    word.erase(0, word.find_first_not_of(' '));
    if (word == "noheader")
      csv.header = false;
    else if (word == "nounits")
      csv.units = false;
    else if (word != "csv")
      return "--format=" + format + ": must be csv, optionally with ,noheader or ,nounits";
  }
  return "";
}

std::string check(const Arguments& arguments, Csv& csv) {
  for (const std::string& name : arguments.columns) {
    if (!find_field(name)) return "--query-gpu: unknown field '" + name + "'; see pool-smi --help-query-gpu";
  }
  for (const std::string& name : arguments.process_columns) {
    if (!is_process_column(name))
      return "--query-compute-apps: unknown field '" + name +
             "'; valid fields: pid, process_name, used_gpu_memory, gpu_uuid";
  }
  csv.columns = arguments.columns.empty() ? arguments.process_columns : arguments.columns;
  return read_format(arguments.format, csv);
}

int show(const Api& api, const Arguments& arguments, const Csv& csv) {
  std::string failure;
  const auto gpus = read_gpus(api, arguments.gpus, failure);
  if (gpus.empty()) return fail(kExitNoGpu, failure);
  const std::string text = arguments.list                       ? as_list(gpus)
                           : arguments.json                     ? as_json(gpus)
                           : !arguments.columns.empty()         ? as_csv(gpus, csv)
                           : !arguments.process_columns.empty() ? processes_as_csv(gpus, csv)
                                                                : as_table(gpus);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) return 1;
  for (const Gpu& gpu : gpus) {
    if (gpu.lost) return kExitLost;
  }
  return 0;
}

int run(const Arguments& arguments) {
  Csv csv;
  if (const std::string wrong = check(arguments, csv); !wrong.empty()) return fail(kExitUsage, wrong);
  if ((!arguments.server.empty() && !gpupool::set_environment("GPUPOOL", arguments.server)) ||
      (!arguments.token_file.empty() &&
       !gpupool::set_environment("GPUPOOL_TOKEN_FILE", arguments.token_file))) {
    return fail(1, "out of memory");
  }
  const char* const server = std::getenv("GPUPOOL");
  if (server && std::string_view(server).starts_with("pool://")) {
    return fail(kExitUsage,
                "GPUPOOL is the address of a scheduler, and pool-smi does not lease GPUs: run pool-smi under "
                "pool-run, or use --server tcp://HOST:PORT");
  }
  if (!server || !*server)
    return fail(kExitNoServer, "no server configured: use --server tcp://HOST:PORT, or set GPUPOOL");
  Api api;
  if (const std::string wrong = api.load(); !wrong.empty()) return fail(1, wrong);
  // The library has logged the reason.
  if (const nvmlReturn_t result = api.nvmlInit_v2(); result != NVML_SUCCESS) return kExitNoServer;
  int status = show(api, arguments, csv);
  csv.header = false;
  while (arguments.every > 0 && (status == 0 || status == kExitLost)) {
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.every));
    status = show(api, arguments, csv);
  }
  (void)api.nvmlShutdown();
  return status;
}

int read_and_run(int count, char** words) {
  Arguments arguments;
  CLI::App app{
      "Shows the GPUs that GPUPOOL names: memory within the quota, utilization, and this host's processes.",
      "pool-smi"};
  app.set_version_flag("--version", std::string("pool-smi ") + gpupool::kVersion);
  app.add_option("--server", arguments.server,
                 "Address of a poold, or a comma-separated list; default: $GPUPOOL");
  app.add_option("--token-file", arguments.token_file,
                 "File with your tenant's token; default: $GPUPOOL_TOKEN_FILE");
  app.add_option("-i,--id", arguments.gpus, "Only these GPUs: index, UUID or bus id")->delimiter(',');
  app.add_flag("-L,--list-gpus", arguments.list, "Print one line for each GPU");
  app.add_flag("--json", arguments.json, "Print all fields as JSON");
  auto* const gpu =
      app.add_option("--query-gpu", arguments.columns, "Comma-separated fields to print for each GPU")
          ->delimiter(',');
  auto* const apps =
      app.add_option(
             "--query-compute-apps", arguments.process_columns,
             "Comma-separated fields to print for each process: pid, process_name, used_gpu_memory, gpu_uuid")
          ->delimiter(',');
  app.add_option("--format", arguments.format, "csv[,noheader][,nounits]");
  app.add_option("-l,--loop", arguments.every, "Repeat every N seconds")->check(CLI::Range(0.05, 86400.0));
  bool help_fields = false;
  app.add_flag("--help-query-gpu", help_fields, "List the fields of --query-gpu");
  gpu->excludes(apps);
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& wrong) {
    if (wrong.get_exit_code() == 0) return app.exit(wrong);
    return fail(kExitUsage, gpupool::settings::describe_usage_error(app, wrong) + "; see pool-smi --help");
  }
  if (help_fields) {
    for (const Field& field : fields()) std::printf("%s\n", field.name);
    return 0;
  }
  return run(arguments);
}

}  // namespace

int main(int count, char** words) {
  try {
    return read_and_run(count, words);
  } catch (const std::exception& failure) {
    return fail(1, failure.what());
  }
}
