#include "tests/chaos/network.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "tests/support/poold_process.h"

namespace gpupool::testing {
namespace {

namespace fs = std::filesystem;

std::string host_program() {
  return program_path("chaos-host");
}

void run(const std::vector<std::string>& words) {
  const Finished finished = run_to_end(words);
  if (finished.status == 0) return;
  std::string line;
  for (const std::string& word : words) line += word + " ";
  throw std::runtime_error(line + "failed: " + finished.output);
}

std::string hardware_address_of(int number) {
  char text[32];
  std::snprintf(text, sizeof text, "02:00:00:00:00:%02x", number);
  return text;
}

std::string link_of(pid_t pid, const char* space) {
  std::error_code gone;
  return fs::read_symlink("/proc/" + std::to_string(pid) + "/ns/" + space, gone).string();
}

// Returns the pid in the innermost namespace: the last number of the line "NSpid:".
pid_t inner_number(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  pid_t inner = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("NSpid:"))
      inner = static_cast<pid_t>(std::atol(line.c_str() + line.find_last_of(" \t")));
  }
  return inner;
}

}  // namespace

std::string Network::enter() {
  if (::geteuid() != 0) return "network namespaces need root";
  if (::access(host_program().c_str(), X_OK) != 0) return "chaos-host is not built";
  if (const Finished tried = run_to_end({host_program(), "try"}); tried.status != 0)
    return "cannot create namespaces: " + tried.output.substr(0, tried.output.find('\n'));
  for (const char* const tool : {"/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"}) {
    if (::access(tool, X_OK) != 0) continue;
    return ::unshare(CLONE_NEWNET) == 0
               ? ""
               : std::string("cannot create a network namespace: ") + std::strerror(errno);
  }
  return "the program ip is missing (package iproute2)";
}

Network::Network() {
  run({"ip", "link", "set", "dev", "lo", "up"});
  run({"ip", "link", "add", "switch", "type", "bridge"});
  run({"ip", "link", "set", "dev", "switch", "up", "address", hardware_address_of(Network::kSwitch)});
  run({"ip", "addr", "add", address(kSwitch) + "/24", "dev", "switch"});
  can_disturb_ = run_to_end({"sh", "-c",
                             "command -v tc > /dev/null && tc qdisc add dev lo root netem delay 1ms && tc "
                             "qdisc del dev lo root"})
                     .status == 0;
}

std::string Host::hardware_address() const {
  return hardware_address_of(number_);
}

void Host::power_on() {
  machine_ =
      std::make_unique<Process>(std::vector<std::string>{host_program(), "init", name_}, Environment{});
  const auto children = machine_->await_output("up") ? children_of(machine_->pid()) : std::vector<pid_t>{};
  if (children.size() != 1)
    throw std::runtime_error("machine " + name_ + " did not come up: " + machine_->output());
  first_ = children[0];
  ++starts_;
  run({"ip", "link", "add", port(), "type", "veth", "peer", "name", "eth0", "address", hardware_address(),
       "netns", std::to_string(first_)});
  run({"ip", "link", "set", "dev", port(), "master", "switch", "up"});
  run(on_it({"ip", "link", "set", "dev", "lo", "up"}));
  run(on_it({"ip", "addr", "add", address() + "/24", "dev", "eth0"}));
  run(on_it({"ip", "link", "set", "dev", "eth0", "up"}));
}

void Host::power_off() {
  run({"ip", "link", "del", port()});
  ::kill(first_, SIGKILL);
  if (machine_->wait() < 0) throw std::runtime_error("machine " + name_ + " did not switch off");
  machine_.reset();
}

std::vector<std::string> Host::on_it(std::vector<std::string> words) const {
  words.insert(words.begin(), {host_program(), "enter", std::to_string(first_)});
  return words;
}

std::unique_ptr<Process> Host::start(const std::vector<std::string>& words,
                                     const Environment& environment) const {
  return std::make_unique<Process>(on_it(words), environment);
}

std::vector<Running> Host::processes() const {
  std::vector<Running> found;
  if (!is_on()) return found;
  const std::string mine = link_of(first_, "pid");
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    const auto pid = static_cast<pid_t>(std::atol(entry.path().filename().c_str()));
    if (pid <= 0 || pid == first_ || link_of(pid, "pid") != mine || is_zombie(pid)) continue;
    std::ifstream file(entry.path() / "comm");
    std::string program;
    if (std::getline(file, program)) found.push_back({pid, inner_number(pid), program});
  }
  return found;
}

std::shared_ptr<PidHandle> Host::handle(pid_t pid) const {
  const int pidfd = pid > 0 && is_on() ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1;
  if (pidfd < 0) return nullptr;
  auto handle = std::make_shared<PidHandle>(pidfd);
  return link_of(pid, "pid") == link_of(first_, "pid") ? handle : nullptr;
}

PidHandle::~PidHandle() {
  ::close(pidfd_);
}
bool PidHandle::signal(int number) const {
  return ::syscall(SYS_pidfd_send_signal, pidfd_, number, nullptr, 0) == 0;
}

std::vector<std::string> Host::shared_memory() const {
  std::vector<std::string> names;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(first_) + "/root/dev/shm", gone))
    names.push_back(entry.path().filename());
  return names;
}

void Host::set_link(bool up) const {
  run({"ip", "link", "set", "dev", port(), up ? "up" : "down"});
}

void Host::lose_packets_to(const Host& other, bool lose) const {
  // Maps the other machine's address to a MAC address that no port has.
  const std::string taker = lose ? "02:00:00:00:ff:ff" : other.hardware_address();
  run(on_it({"ip", "neigh", "replace", other.address(), "lladdr", taker, "nud", "permanent", "dev", "eth0"}));
}

void Host::disturb(const std::string& how) const {
  if (how.empty())
    run({"tc", "qdisc", "del", "dev", port(), "root"});
  else
    run({"sh", "-c", "tc qdisc add dev " + port() + " root netem " + how});
}

}  // namespace gpupool::testing
