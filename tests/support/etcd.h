// Real etcd processes for tests: one member or a cluster, on free loopback ports with a folder of its own, which answers when the constructor
// returns. Needs Debian's packages etcd-server and etcd-client.
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
    bool tls = false;                   // with the files that follow
    std::string certificate, key, ca;   // ca: of the clients' certificates
    std::string host = "127.0.0.1";     // where all listen
    std::vector<std::string> launcher;  // words before "etcd": ip netns exec NAME
    // Data on the disk of temporary files, for measurements. Otherwise in memory where there is room, so that what other programs
    // write to the disk does not make members miss each other's heartbeats.
    bool on_disk = false;
  };
  EtcdCluster() : EtcdCluster(Options{}) {}
  explicit EtcdCluster(const Options& options);

  // For pool-scheduler --store.
  std::string store(const std::string& prefix = "test") const;
  std::string endpoint(size_t member) const { return options_.host + ":" + std::to_string(members_[member].client_port); }
  size_t size() const { return members_.size(); }
  Process& process(size_t member) { return *members_[member].process; }
  void kill(size_t member);  // -9
  void start(size_t member);
  // All of them.
  void pause();
  void resume();
  bool await_ready() const;  // until the members that run answer as one cluster
  size_t leader() const;     // of the cluster, by etcd's own word
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
