#include "tests/support/etcd.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

namespace gpupool::testing {
namespace {

constexpr int kTries = 5;  // another process may take a port before etcd does
constexpr const char* kReady = "ready to serve client requests";
constexpr uintmax_t kMemberBytes = 256 << 20;  // etcd reserves 64 MiB for each of its logs

std::filesystem::path folder_for(const EtcdCluster::Options& options) {
  std::error_code error;
  const auto space = std::filesystem::space("/dev/shm", error);
  const bool in_memory = !options.on_disk && !error && space.available > options.members * kMemberBytes;
  return in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
}

}  // namespace

int free_port(const std::string& host) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  const bool bound = socket >= 0 && ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(socket);
  if (!bound) throw std::runtime_error("no free port on " + host);
  return ntohs(address.sin_port);
}

EtcdCluster::EtcdCluster(const Options& options)
    : options_(options), folder_(folder_for(options)), members_(options.members) {
  for (int left = kTries; !try_start(); --left) {
    if (left == 1)
      throw std::runtime_error("etcd did not start (packages etcd-server, etcd-client):\n" +
                               members_[0].process->output());
  }
}

bool EtcdCluster::try_start() {
  for (Member& member : members_) {
    member.process.reset();
    member.client_port = free_port();
    member.peer_port = free_port();
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    std::filesystem::remove_all(folder_.path() / std::to_string(i));
    start(i);
  }
  for (Member& member : members_) {
    const bool up = member.process->await_output([&](const std::string& log) {
      return log.find(kReady) != log.npos || is_zombie(member.process->pid());
    });
    if (!up || is_zombie(member.process->pid())) return false;
  }
  return await_ready();
}

std::string EtcdCluster::store(const std::string& prefix) const {
  std::string out = options_.tls ? "etcds://" : "etcd://";
  for (size_t i = 0; i < members_.size(); ++i) out += (i == 0 ? "" : ",") + endpoint(i);
  return out + "/" + prefix;
}

void EtcdCluster::start(size_t member) {
  const auto url = [&](int port, bool client) {
    return (client && options_.tls ? "https://" : "http://") + options_.host + ":" + std::to_string(port);
  };
  std::string all;
  for (size_t i = 0; i < members_.size(); ++i)
    all += (i == 0 ? "m" : ",m") + std::to_string(i) + "=" + url(members_[i].peer_port, false);
  const Member& me = members_[member];
  std::vector<std::string> words = options_.launcher;
  words.insert(words.end(),
               {"etcd", "--name", "m" + std::to_string(member), "--data-dir",
                folder_.path() / std::to_string(member), "--listen-client-urls", url(me.client_port, true),
                "--advertise-client-urls", url(me.client_port, true), "--listen-peer-urls",
                url(me.peer_port, false), "--initial-advertise-peer-urls", url(me.peer_port, false),
                "--initial-cluster", all, "--initial-cluster-state", "new"});
  if (options_.tls) {
    words.insert(words.end(), {"--cert-file", options_.certificate, "--key-file", options_.key});
    if (!options_.ca.empty())
      words.insert(words.end(), {"--client-cert-auth", "--trusted-ca-file", options_.ca});
  }
  members_[member].process = std::make_unique<Process>(words, Environment{});
}

void EtcdCluster::kill(size_t member) {
  members_[member].process->signal(SIGKILL);
  members_[member].process->wait();
}

void EtcdCluster::pause() {
  for (Member& member : members_) member.process->signal(SIGSTOP);
}

void EtcdCluster::resume() {
  for (Member& member : members_) member.process->signal(SIGCONT);
}

bool EtcdCluster::await_ready() const {
  if (options_.tls) return true;  // etcdctl has no certificate
  return eventually([&] { return etcdctl({"get", "ready"}).find("Error") == std::string::npos; });
}

size_t EtcdCluster::leader() const {
  size_t found = members_.size();
  eventually([&] {
    for (size_t i = 0; i < members_.size() && found == members_.size(); ++i) {
      // ENDPOINT, ID, VERSION, SIZE, IS LEADER, ...
      const std::string status =
          run_to_end({"etcdctl", "--endpoints", endpoint(i), "--command-timeout=2s", "endpoint", "status"},
                     {{"ETCDCTL_API", "3"}})
              .output;
      if (status.find(", true, false") != status.npos) found = i;
    }
    return found != members_.size();
  });
  return found;
}

std::string EtcdCluster::etcdctl(std::vector<std::string> words) const {
  std::string all;
  for (size_t i = 0; i < members_.size(); ++i) all += (i == 0 ? "" : ",") + endpoint(i);
  words.insert(words.begin(), {"etcdctl", "--endpoints", all});
  return run_to_end(words, {{"ETCDCTL_API", "3"}}).output;
}

}  // namespace gpupool::testing
