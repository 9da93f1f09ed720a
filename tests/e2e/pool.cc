#include "tests/e2e/pool.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <regex>
#include <sstream>
#include <stdexcept>

#include "protocol/calls/handles.h"
#include "protocol/wire/commands.h"
#include "tests/support/raw_client.h"

namespace gpupool::testing {
namespace {

Environment with_instance(Environment softgpu) {
  static std::atomic<int> count{0};
  softgpu.emplace("SOFTGPU_INSTANCE", "e2e-" + std::to_string(::getpid()) + "-" + std::to_string(++count));
  softgpu.emplace("SOFTGPU_MEMORY", "256MiB");
  return softgpu;
}

bool transport_is(std::string_view name) {
  const char* transport = std::getenv("GPUPOOL_TEST_TRANSPORT");
  return transport && transport == name;
}

// RDMA connections survive pauses of 7 s (4.096 us times 2^18, seven times): a busy machine stops the guest
// for that long.
constexpr const char* kRdmaTimeout = "18";

// Pools of tests keep one idle worker; poold's default is two. A softgpu worker loads LLVM, which takes
// longer than most tests.
std::vector<std::string> with_defaults(std::vector<std::string> options) {
  if (over_rdma()) options.insert(options.end(), {"--rdma-timeout", kRdmaTimeout});
  if (std::find(options.begin(), options.end(), "--idle-workers") == options.end())
    options.insert(options.end(), {"--idle-workers", "1"});
  return options;
}

}  // namespace

bool over_shared_memory() {
  return transport_is("shm");
}
bool over_rdma() {
  return transport_is("rdma");
}

std::string test_device() {
  const char* const device = std::getenv("GPUPOOL_TEST_DEVICE");
  return device && *device ? device : "softgpu";
}
bool on_softgpu() {
  return test_device() == "softgpu";
}

std::string driver_app() {
  return moved_path("driver_app", E2E_DRIVER_APP);
}
std::string client_folder() {
  return moved_path("../lib/client", E2E_CLIENT_FOLDER);
}
std::string softgpu_folder() {
  return moved_path("../lib/softgpu", E2E_SOFTGPU_FOLDER);
}

Pool::Pool(Environment softgpu, const std::vector<std::string>& options, const std::string& device,
           const std::vector<std::string>& launcher)
    : softgpu_(with_instance(std::move(softgpu))),
      poold_(device, with_defaults(options), softgpu_, launcher) {}

Pool::~Pool() {
  poold_.stop();
  for (const std::string& file : shared_files(instance())) ::unlink(("/dev/shm/" + file).c_str());
}

pid_t Pool::worker_of(const Process& program) const {
  const std::string client = " pid=" + std::to_string(program.pid()) + " ";
  if (!poold_.await_log(client)) throw std::runtime_error("the program has no session");
  const std::string line = lines_with(poold_.log(), client).at(0);
  return static_cast<pid_t>(std::stol(line.substr(line.find("worker=") + 7)));
}

Environment Pool::through(Environment more) const {
  more.emplace("LD_LIBRARY_PATH", client_folder());
  more.emplace("GPUPOOL", poold_.url());
  more.emplace("GPUPOOL_RDMA_TIMEOUT", kRdmaTimeout);
  more.emplace("GPUPOOL_TRANSPORT", over_shared_memory() ? "auto" : over_rdma() ? "rdma" : "tcp");
  return more;
}

Environment Pool::directly(Environment more) const {
  if (!on_softgpu()) {
    // The dynamic linker finds NVIDIA's library by itself.
    if (test_device() != "nvidia")
      more.emplace("LD_LIBRARY_PATH", std::filesystem::path(test_device()).parent_path().string());
    return more;
  }
  more.emplace("LD_LIBRARY_PATH", softgpu_folder());
  for (const auto& [name, value] : softgpu_) more.emplace(name, value);
  more["SOFTGPU_INSTANCE"] += "-direct";
  return more;
}

Finished run_patiently(const std::vector<std::string>& words, const Environment& environment) {
  Process process(words, environment);
  Finished finished;
  finished.status = process.wait(on_softgpu() ? kLongPatience : kGpuPatience);
  if (finished.status == -1) process.signal(SIGKILL);
  process.await_end_of_output();
  finished.output = process.output();
  return finished;
}

std::string without_timings(const std::string& output) {
  static const std::regex number("[0-9.]+(e[+-]?[0-9]+)? ?(ms|us|ns|s|[GMK]?i?B/s|[GT]FLOP/?s|/s)\\b");
  return std::regex_replace(output, number, "# $2");
}

std::vector<std::string> lines_with(const std::string& output, const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(text) != std::string::npos) found.push_back(line);
  }
  return found;
}

int count_devices(const Pool& pool) {
  return static_cast<int>(
      lines_with(run_patiently({driver_app(), "list_devices"}, pool.directly()).output, "GPU-").size());
}

std::vector<std::string> shared_files(const std::string& instance) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.find(instance) != std::string::npos) found.push_back(name);
  }
  return found;
}

uint64_t free_bytes(Pool& pool) {
  constexpr uint64_t kContext = cuda::make_handle(cuda::Kind::context, 1, 1);
  constexpr uint16_t kMemGetInfo = 0x0200;  // protocol/calls/memory.def: two out pointers, both non-null
  RawClient client(pool.poold().endpoint());
  client.open();
  client.send_command(wire::Command::retain_primary_context,
                      RawClient::bytes_of(wire::PrimaryContext{kContext, 0, 0}));
  const Message reply =
      client.receive_reply_to(client.send_command(kMemGetInfo, "\1\1", kContext, wire::kWantsReply));
  uint64_t free = 0;
  if (reply.header.result != 0 || reply.body.size() != 2 * sizeof free)
    throw std::runtime_error("cuMemGetInfo failed");
  std::memcpy(&free, reply.body.data(), sizeof free);
  return free;
}

}  // namespace gpupool::testing
