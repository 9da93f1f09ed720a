// The SPANK plugin: --gpupool of srun, sbatch and salloc takes a lease of a pool for the job.
//
// One file of callbacks for four kinds of processes, each of which loads the plugin:
// - srun, sbatch, salloc (the user): slurm_spank_init_post_opt() asks the scheduler whether it can ever grant
//   the request, and passes the request to the nodes in the job's control environment, which Slurm keeps with
//   the job and does not show to other users.
// - slurmstepd as prolog and epilog of slurmd (root), on each node of the job: the prolog starts pool-lease
//   as the job's user, and does not wait for the lease. pool-lease on the first node holds the lease, on the
//   others it follows the lease. The epilog ends the lease.
// - a task of slurmstepd (the user) before it executes the program: slurm_spank_task_init() waits for the
//   lease in a child process, because Slurm's kill spares tasks that are still slurmstepd.
// - slurmd (root): ends, at its start, leases of jobs that ended meanwhile.
#include <dlfcn.h>
#include <pwd.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "client/run/request.h"
#include "client/slurm/job_folder.h"
#include "client/slurm/programs.h"
#include "client/slurm/request.h"
#include "client/slurm/settings.h"

extern "C" {
#include <slurm/spank.h>
}

namespace {

using namespace gpupool;
using namespace gpupool::slurm;
namespace fs = std::filesystem;

constexpr int kExitNoScheduler = 3;  // of pool-lease --check
constexpr const char* kRequest = "GPUPOOL_REQUEST";
constexpr const char* kSeed = "GPUPOOL_SEED";
// Paths that pool-lease reads.
constexpr const char* kPassedOn[] = {"GPUPOOL_TOKEN_FILE", "GPUPOOL_TLS_CA", "GPUPOOL_TLS_CERT",
                                     "GPUPOOL_TLS_KEY"};
// As prefix of the job's control environment in prolog and epilog.
constexpr const char* kSpankPrefix = "SPANK_";
// As prefix of it in the environment of the job's programs.
constexpr const char* kProgramPrefix = "SLURM_SPANK_";
// By these a job's programs hand --gpupool on to srun, but also to sbatch and salloc.
constexpr const char* kInherited[] = {"SLURM_SPANK__SLURM_SPANK_OPTION_gpupool_gpupool",
                                      "_SLURM_SPANK_OPTION_gpupool_gpupool"};

bool requested = false;
std::string option_value;  // "gpus=2,memory=8G"

int take_option(int, const char* value, int) {
  requested = true;
  option_value = value != nullptr ? value : "";
  return 0;
}

// Slurm's table has pointers to non-const.
char option_name[] = "gpupool";
char option_argument[] = "gpus=N,memory=SIZE,compute=PERCENT,...";
char option_usage[] = "lease GPUs of a gpupool for the job (terms: options of pool-run; default: one GPU)";
spank_option the_option = {option_name, option_argument, option_usage, 2, 0, take_option};

std::string plugin_path() {
  Dl_info about{};
  return ::dladdr(reinterpret_cast<void*>(&take_option), &about) != 0 && about.dli_fname != nullptr
             ? about.dli_fname
             : "";
}

std::string variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value != nullptr ? value : "";
}

void set_variable(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread
}

Settings read_settings(int count, char* const* words) {
  auto settings = parse_settings(count, words, plugin_path());
  if (!settings) throw std::runtime_error(settings.error().message);
  return std::move(*settings);
}

// Returns the job or the user of a spank handle.
uint32_t number_of(spank_t spank, spank_item item) {
  uint32_t number = 0;
  if (const spank_err_t error = spank_get_item(spank, item, &number); error != ESPANK_SUCCESS)
    throw std::runtime_error(std::string("Slurm does not name the job or its user: ") +
                             spank_strerror(error));
  return number;
}

std::string error_of_system() {
  return std::generic_category().message(errno);
}

// Ends srun, sbatch or salloc before anything is submitted. Returning an error instead would add two lines of
// Slurm's about plugins to the reason.
[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "gpupool: %s\n", why.c_str());
  std::exit(1);  // NOLINT(concurrency-mt-unsafe): one thread
}

std::string home() {
  const passwd* const user = ::getpwuid(::getuid());  // NOLINT(concurrency-mt-unsafe): one thread
  return user != nullptr ? user->pw_dir : "";
}

// Sets the paths that pool-lease needs as absolute ones, since it runs in another folder.
void complete_paths(const Settings& settings) {
  if (variable("GPUPOOL_TOKEN_FILE").empty()) {
    if (!variable("GPUPOOL_TOKEN").empty()) {
      refuse(
          "GPUPOOL_TOKEN does not reach the nodes of a job: write the token into a file with mode 0600 and "
          "set "
          "GPUPOOL_TOKEN_FILE");
    }
    std::string path = settings.token_file;
    if (path.starts_with("~/")) path = home() + path.substr(1);
    if (!path.empty() && ::access(path.c_str(), F_OK) == 0) set_variable("GPUPOOL_TOKEN_FILE", path);
  }
  for (const char* const name : kPassedOn) {
    const std::string path = variable(name);
    if (path.empty()) continue;
    if (::access(path.c_str(), R_OK) != 0)
      refuse(std::string(name) + ": '" + path + "': " + error_of_system());
    set_variable(name, fs::absolute(path));
  }
}

std::string request_address(const Settings& settings) {
  std::string server = settings.server.empty() ? variable("GPUPOOL") : settings.server;
  if (!server.starts_with("pool://")) {
    refuse(
        "no scheduler is known: set GPUPOOL=pool://HOST:PORT, or have server=pool://HOST:PORT added to the "
        "line "
        "of the plugin in plugstack.conf");
  }
  const auto query = request_query(option_value);
  if (!query) refuse(query.error().message);
  return run::with_request(server, *query);
}

void check(const Settings& settings, const std::string& address) {
  const auto checked = run_program({settings.programs + "/pool-lease", "--check", address});
  if (!checked) refuse(checked.error().message);
  if (checked->status == 0) return;
  if (checked->status != kExitNoScheduler)
    std::exit(1);  // NOLINT(concurrency-mt-unsafe): one thread; pool-lease has said why
  std::fprintf(stderr, "gpupool: the request is checked when the job starts\n");
}

std::string random_text() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) refuse("no random numbers");
  std::string text;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

int submit(spank_t spank, const Settings& settings) {
  // A job that is submitted by a job has inherited the control environment of that job.
  for (const char* const name : {kRequest, kSeed}) spank_job_control_unsetenv(spank, name);
  for (const char* const name : kPassedOn) spank_job_control_unsetenv(spank, name);
  if (!requested) return 0;
  complete_paths(settings);
  const std::string address = request_address(settings);
  if (settings.check) check(settings, address);
  bool good = spank_job_control_setenv(spank, kRequest, address.c_str(), 1) == ESPANK_SUCCESS &&
              spank_job_control_setenv(spank, kSeed, random_text().c_str(), 1) == ESPANK_SUCCESS;
  for (const char* const name : kPassedOn) {
    if (const std::string path = variable(name); !path.empty())
      good = good && spank_job_control_setenv(spank, name, path.c_str(), 1) == ESPANK_SUCCESS;
  }
  if (!good) refuse("Slurm does not pass the request on to the nodes");
  return 0;
}

JobRun job_of_prolog(spank_t spank) {
  JobRun run;
  run.job = number_of(spank, S_JOB_ID);
  run.restart = static_cast<uint32_t>(std::strtoul(variable("SLURM_JOB_RESTART_COUNT").c_str(), nullptr, 10));
  run.node = variable("SLURMD_NODENAME");
  return run;
}

// The environment of the pool-lease that holds the job's lease or follows it.
std::vector<std::string> holder_environment(const JobRun& run) {
  std::vector<std::string> out = {"PATH=/usr/bin:/bin"};
  for (const char* const name : kPassedOn) {
    if (const std::string path = variable(std::string(kSpankPrefix) + name); !path.empty())
      out.push_back(std::string(name) + "=" + path);
  }
  out.push_back("GPUPOOL_LEASE_ID=" + variable(std::string(kSpankPrefix) + kSeed) + ":" +
                std::to_string(run.job) + ":" + std::to_string(run.restart));
  if (first_host(variable("SLURM_NODELIST")) != run.node) out.push_back("GPUPOOL_LEASE_FOLLOW=1");
  return out;
}

Result<void> hold_lease(spank_t spank, const Settings& settings, const std::string& address) {
  const JobRun run = job_of_prolog(spank);
  Holder holder;
  holder.user = number_of(spank, S_JOB_UID);
  const std::string group = variable("SLURM_JOB_GID");
  holder.user_name = variable("SLURM_JOB_USER");
  if (run.node.empty() || group.empty())
    return Error{ErrorCode::unavailable, "Slurm's prolog has no SLURMD_NODENAME or SLURM_JOB_GID"};
  holder.group = static_cast<gid_t>(std::strtoul(group.c_str(), nullptr, 10));
  const std::string program = settings.programs + "/pool-lease";
  if (::access(program.c_str(), X_OK) != 0) {
    return Error{ErrorCode::unavailable,
                 program + ": " + error_of_system() +
                     "; install gpupool on this node, or name its folder with gpupool= in "
                     "plugstack.conf"};
  }
  end_leases(settings.folder, run.job, run.node);  // of an earlier run whose epilog did not run
  const auto files = make_job_folder(settings.folder, run, holder.user, holder.group);
  if (!files) return files.error();
  const std::string name = std::to_string(run.job);
  holder.files = *files;
  holder.variables = holder_environment(run);
  holder.words = {program, "--hold", files->path, run::with_request(address, "label=job%3D" + name),
                  "slurm job " + name};
  return start_holder(holder);
}

std::string error_text(const std::exception& failure) {
  return std::string("gpupool: ") + failure.what();
}

// Sets the variables in "NAME=VALUE\0NAME=VALUE\0" for the task.
bool set_variables(spank_t spank, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const std::string pair = text.c_str() + at;
    at += pair.size() + 1;
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) return false;
    if (spank_setenv(spank, pair.substr(0, equals).c_str(), pair.c_str() + equals + 1, 1) != ESPANK_SUCCESS)
      return false;
  }
  return true;
}

// Ends the task, which is a process of its own. Returning an error instead would add lines of Slurm's.
[[noreturn]] void end_task(const std::string& why) {
  if (!why.empty()) std::fprintf(stderr, "gpupool: %s\n", why.c_str());
  ::_exit(1);
}

void prepare_task(spank_t spank, const Settings& settings) {
  const uint32_t job = number_of(spank, S_JOB_ID);
  int task = 0;
  char** variables = nullptr;
  spank_get_item(spank, S_TASK_ID, &task);
  spank_get_item(spank, S_JOB_ENV, &variables);
  const std::string folder = find_job_folder(settings.folder, job, variable("SLURMD_NODENAME"), ::getuid());
  if (folder.empty() && !requested) return;
  if (folder.empty()) {
    end_task(
        task == 0
            ? "this job has no lease on this node: --gpupool must be an option of the sbatch, salloc or "
              "srun that starts the job, and slurm.conf must have PrologFlags=Alloc; if both are so, the "
              "job's start was interrupted: submit it again"
            : "");
  }
  // One task of each node prints the messages.
  const auto waited =
      run_program({settings.programs + "/pool-lease", "--await", folder}, variables, task != 0);
  if (!waited) end_task(waited.error().message);
  if (waited->status != 0) end_task("");
  // With the seed and a token of the tenant, anyone can use the lease; programs print their environment.
  spank_unsetenv(spank, (std::string(kProgramPrefix) + kSeed).c_str());
  if (!set_variables(spank, waited->output)) end_task("cannot set the environment of the task");
}

}  // namespace

#define GPUPOOL_CALLBACK extern "C" __attribute__((visibility("default")))

extern "C" {
__attribute__((visibility("default"))) extern const char plugin_name[] = "gpupool";
__attribute__((visibility("default"))) extern const char plugin_type[] = "spank";
__attribute__((visibility("default"))) extern const unsigned int plugin_version = SLURM_VERSION_NUMBER;
__attribute__((visibility("default"))) extern const unsigned int spank_plugin_version = 1;
}

GPUPOOL_CALLBACK int slurm_spank_init(spank_t spank, int count, char* words[]) try {
  const Settings settings = read_settings(count, words);
  const bool submits_from_job = spank_context() == S_CTX_ALLOCATOR && !variable("SLURM_JOB_ID").empty();
  for (const char* const name : kInherited) {
    if (submits_from_job) ::unsetenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
  }
  if (spank_context() != S_CTX_SLURMD) return spank_option_register(spank, &the_option);
  std::error_code status;
  if (fs::exists(settings.folder, status) && !fs::is_empty(settings.folder, status)) {
    const fs::path script = fs::path(plugin_path()).parent_path() / "end-stale-leases.sh";
    start_detached({"/bin/sh", script, settings.folder});
  }
  return 0;
} catch (const std::exception& failure) {
  slurm_error("%s", error_text(failure).c_str());
  return -1;
}

GPUPOOL_CALLBACK int slurm_spank_init_post_opt(spank_t spank, int count, char* words[]) try {
  const spank_context_t context = spank_context();
  if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR) return 0;
  // A step of a job that exists: its job has the lease.
  if (context == S_CTX_LOCAL && !variable("SLURM_JOB_ID").empty()) return 0;
  return submit(spank, read_settings(count, words));
} catch (const std::exception& failure) {
  refuse(failure.what());
}

GPUPOOL_CALLBACK int slurm_spank_job_prolog(spank_t spank, int count, char* words[]) try {
  const std::string address = variable(std::string(kSpankPrefix) + kRequest);
  if (address.empty()) return 0;
  const auto held = hold_lease(spank, read_settings(count, words), address);
  if (held) return 0;
  slurm_error("gpupool: %s", held.error().message.c_str());
  return -1;  // the node is at fault: Slurm drains it and requeues the job
} catch (const std::exception& failure) {
  slurm_error("%s", error_text(failure).c_str());
  return -1;
}

GPUPOOL_CALLBACK int slurm_spank_task_init(spank_t spank, int count, char* words[]) try {
  prepare_task(spank, read_settings(count, words));
  return 0;
} catch (const std::exception& failure) {
  end_task(failure.what());
}

GPUPOOL_CALLBACK int slurm_spank_job_epilog(spank_t spank, int count, char* words[]) try {
  const JobRun run = job_of_prolog(spank);
  end_leases(read_settings(count, words).folder, run.job, run.node);
  return 0;
} catch (const std::exception& failure) {
  slurm_error("%s", error_text(failure).c_str());
  return 0;  // an epilog that fails drains the node
}
