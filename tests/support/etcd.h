// Real etcd processes for tests: one member or a cluster, on free ports with a temporary folder. The
// constructor returns when the cluster answers, and throws std::runtime_error if it does not. Needs Debian's
// packages etcd-server and etcd-client.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace gpupool::testing {

class EtcdCluster {
 public:
  struct Options {
    size_t members = 1;
    bool tls = false;                   // uses the following files
    std::string certificate, key, ca;   // ca: of the clients' certificates
    std::string host = "127.0.0.1";     // address that all members listen on
    std::vector<std::string> launcher;  // command in front of "etcd", e.g. setpriv --pdeathsig KILL
    // Keeps the data on disk, for measurements. Otherwise it is in /dev/shm if there is room, so that disk
    // writes of other programs do not delay the members' heartbeats.
    bool on_disk = false;
  };
  EtcdCluster() : EtcdCluster(Options{}) {}
  explicit EtcdCluster(const Options& options);

  // Returns the address for pool-scheduler --store.
  std::string store(const std::string& prefix = "test") const;
  std::string endpoint(size_t member) const {
    return options_.host + ":" + std::to_string(members_[member].client_port);
  }
  size_t size() const { return members_.size(); }
  Process& process(size_t member) { return *members_[member].process; }
  void kill(size_t member);  // SIGKILL
  void start(size_t member);
  // Stop and continue all members.
  void pause();
  void resume();
  bool await_ready() const;  // waits until the running members answer as a cluster
  size_t leader() const;     // index of etcd's leader; size() if there is none
  std::string etcdctl(std::vector<std::string> words) const;

 private:
  struct Member {
    int client_port = 0, peer_port = 0;
    std::unique_ptr<Process> process;
  };
  bool try_start();

  const Options options_;
  const TemporaryFolder folder_;
  std::vector<Member> members_;
};

int free_port(const std::string& host = "127.0.0.1");

}  // namespace gpupool::testing
