#include "tests/bench/perftest.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
#include <sstream>
#include <stdexcept>

#include "tests/support/processes.h"

namespace gpupool::bench {
namespace {

namespace fs = std::filesystem;
using testing::Process;

constexpr const char* kDevices = "/sys/class/infiniband";
constexpr std::chrono::minutes kPerftestPatience{1};
constexpr int kTries = 3;  // ib_read_bw over Soft-RoCE sometimes hangs on a busy machine

std::string line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Converts an IPv4-mapped GID: "0000:0000:0000:0000:0000:ffff:0a4d:0001" to 10.77.0.1. Returns "" for other
// GIDs.
std::string ipv4_of(const std::string& gid) {
  unsigned high = 0, low = 0;
  if (std::sscanf(gid.c_str(), "0000:0000:0000:0000:0000:ffff:%4x:%4x", &high, &low) != 2) return "";
  in_addr address{htonl(high << 16 | low)};
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &address, text, sizeof text);
}

// Chooses the first GID of type RoCE v2 with an IPv4 address, as gpupool does.
bool take_gid(const fs::path& port, RdmaDevice& device) {
  for (int index = 0; index < 256; ++index) {
    const std::string name = std::to_string(index);
    if (!fs::exists(port / "gids" / name)) break;
    const std::string address = ipv4_of(line_of(port / "gids" / name));
    if (address.empty() || line_of(port / "gid_attrs" / "types" / name) != "RoCE v2") continue;
    device.address = address;
    device.gid_index = index;
    return true;
  }
  return false;
}

// Returns a free port. Another process is unlikely to get it before perftest listens, because the kernel
// rarely assigns the same port twice in a row.
int free_port() {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  const bool bound = probe >= 0 && bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (probe >= 0) close(probe);
  if (!bound) throw std::runtime_error("no free port for perftest");
  return ntohs(address.sin_port);
}

// Reads /proc, because connecting to perftest's server would make it take the test for its client.
bool somebody_listens(int port) {
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      unsigned local = 0, state = 0;
      if (std::sscanf(line.c_str(), " %*[^:]: %*[^:]:%x %*[^:]:%*x %x", &local, &state) == 2 &&
          state == 0x0a && local == static_cast<unsigned>(port)) {
        return true;
      }
    }
  }
  return false;
}

// Runs server and client. Returns the client's output; null if one of them does not end within
// kPerftestPatience.
std::optional<std::string> output_of(const std::string& program, const RdmaPair& pair, size_t bytes,
                                     int messages, const std::vector<std::string>& more) {
  const int port = free_port();
  const auto words = [&](const RdmaDevice& device) {
    std::vector<std::string> all{program,
                                 "-d",
                                 device.name,
                                 "-s",
                                 std::to_string(bytes),
                                 "-n",
                                 std::to_string(messages),
                                 "-p",
                                 std::to_string(port),
                                 "-F"};
    if (device.gid_index >= 0) all.insert(all.end(), {"-x", std::to_string(device.gid_index)});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  Process server(words(pair.server), {});
  if (!testing::eventually([&] { return somebody_listens(port); }))
    throw std::runtime_error(program + " did not start to listen:\n" + server.output());
  auto of_client = words(pair.client);
  of_client.push_back(pair.server.address);
  Process client(of_client, {});
  const int status = client.wait(kPerftestPatience);
  const int of_server = status == 0 ? server.wait(kPerftestPatience) : 0;
  if (status == -1 || of_server == -1) return std::nullopt;
  if (status != 0 || of_server != 0)
    throw std::runtime_error(program + " failed:\n" + client.output() + server.output());
  return client.output();
}

// Runs perftest and returns the numbers in the line after the header line, which begins with "#bytes".
std::vector<double> run(const std::string& program, const RdmaPair& pair, size_t bytes, int messages,
                        const std::vector<std::string>& more) {
  std::optional<std::string> ended;
  for (int i = 0; i < kTries && !ended; ++i) {
    ended = output_of(program, pair, bytes, messages, more);
    if (!ended)
      std::fprintf(stderr, "gpupool-bench: %s did not end within %lld min\n", program.c_str(),
                   static_cast<long long>(kPerftestPatience.count()));
  }
  if (!ended) throw std::runtime_error(program + " did not end, " + std::to_string(kTries) + " times");
  const std::string& output = *ended;
  std::istringstream lines(output);
  std::string line;
  while (std::getline(lines, line) && line.find("#bytes") == std::string::npos) {
  }
  std::getline(lines, line);
  std::istringstream columns(line);
  std::vector<double> numbers;
  for (double number = 0; columns >> number;) numbers.push_back(number);
  if (numbers.size() < 4 || numbers[0] != static_cast<double>(bytes)) {
    throw std::runtime_error("the output of " + program + " cannot be read:\n" + output);
  }
  return numbers;
}

}  // namespace

std::vector<RdmaDevice> find_rdma_devices() {
  std::vector<RdmaDevice> devices;
  if (!fs::exists(kDevices)) return devices;
  for (const auto& entry : fs::directory_iterator(kDevices)) {
    const fs::path port = entry.path() / "ports" / "1";
    if (line_of(port / "state").find("ACTIVE") == std::string::npos) continue;
    RdmaDevice device{entry.path().filename(), "", -1};
    if (take_gid(port, device) || line_of(port / "link_layer") == "InfiniBand") devices.push_back(device);
  }
  std::sort(devices.begin(), devices.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return devices;
}

std::string hardware_of(const RdmaDevice& device) {
  const std::string output =
      is_installed("ibv_devinfo") ? testing::run_to_end({"ibv_devinfo", "-d", device.name}).output : "";
  const auto field = [&](const std::string& name) {
    std::smatch found;
    return std::regex_search(output, found, std::regex(name + ":\\s*(\\S+)")) ? found[1].str()
                                                                              : std::string("?");
  };
  // A software device has a parent network interface, or no vendor id.
  const bool software =
      fs::exists(fs::path(kDevices) / device.name / "parent") || field("vendor_id") == "0xffffff";
  const bool rxe = software && device.name.starts_with("rxe");
  std::string text = device.name + ": ";
  text += rxe        ? "rxe"
          : software ? "software"
                     : "vendor " + field("vendor_id") + " part " + field("vendor_part_id") + " firmware " +
                           field("fw_ver");
  text += ", " + field("link_layer") + ", MTU " + field("active_mtu");
  std::ifstream cpu("/proc/cpuinfo");
  std::stringstream flags;
  flags << cpu.rdbuf();
  if (flags.str().find("hypervisor") != std::string::npos) text += ", in a VM";
  return text;
}

bool is_installed(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

double perftest_MBps(const std::string& program, const RdmaPair& pair, size_t bytes, int messages) {
  // Columns: bytes, iterations, peak, average, message rate. perftest's "MB" are MiB.
  return run(program, pair, bytes, messages, {}).at(3) * 1.048576;
}

double perftest_latency_us(const RdmaPair& pair, int messages) {
  // Columns: bytes, iterations, minimum, maximum, typical (the median), ...
  return run("ib_write_lat", pair, 8, messages, {}).at(4);
}

size_t registered_bytes(int pid) {
  size_t sum = 0;
  if (is_installed("rdma")) {
    const std::string regions = testing::run_to_end({"rdma", "-jd", "resource", "show", "mr"}).output;
    const std::regex one("\"mrlen\":(\\d+)[^}]*\"pid\":" + std::to_string(pid) + "[,}]");
    for (std::sregex_iterator at(regions.begin(), regions.end(), one), end; at != end; ++at)
      sum += std::stoull((*at)[1]);
  }
  if (sum != 0) return sum;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (std::sscanf(line.c_str(), "VmPin: %zu", &sum) == 1) return sum * 1024;
  }
  return 0;
}

}  // namespace gpupool::bench
