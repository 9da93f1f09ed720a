// The daemons of the chaos test (schedulers and poolds), each on a machine of its own (network.h). One
// thread. Failures are exceptions.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "protocol/control/admin.grpc.pb.h"
#include "protocol/control/pool_admin.grpc.pb.h"
#include "tests/chaos/lease_ledger.h"
#include "tests/chaos/network.h"

namespace gpupool::testing {

int64_t time_of_day();  // milliseconds since 1970

// A daemon that can end at any time and be started again.
class Daemon {
 public:
  Daemon(std::string name, int number) : host_(std::move(name), number) {}
  virtual ~Daemon() = default;
  Host& host() { return host_; }
  const Host& host() const { return host_; }
  bool runs() const { return pid_ != 0; }
  bool died() const;  // it has ended, and await_end() was not called yet
  pid_t pid() const { return pid_; }
  // Does not wait until it is ready.
  void start();
  void signal(int number) const;
  // Waits for the end after a signal or a power failure. Returns false on timeout.
  bool await_end(std::chrono::milliseconds timeout = kPatience);
  const std::string& log() const { return log_; }  // of all its processes, as far as read_log() has read it
  void read_log();

 protected:
  virtual std::vector<std::string> words() const = 0;
  virtual Environment environment() const { return {}; }
  virtual void on_log_line(const std::string&) {}  // called for each line of the log
  virtual void on_end() {}                         // called when the process has ended

 private:
  Host host_;
  std::unique_ptr<Process> process_;
  pid_t pid_ = 0;
  size_t read_ = 0;  // bytes of the process's output
  std::string log_;
};

class SchedulerMachine : public Daemon {
 public:
  SchedulerMachine(std::string name, int number, std::string folder, std::vector<std::string> store);
  std::string address() const { return host().address() + ":9800"; }

 protected:
  std::vector<std::string> words() const override;

 private:
  const std::string folder_;
  const std::vector<std::string> store_;
};

struct PoolMember {
  std::vector<std::string> schedulers;  // addresses
  std::string public_key;               // file name
  std::string token_file;
  int gpus = 2;
  std::string memory = "96MiB";
};

class GpuMachine : public Daemon {
 public:
  GpuMachine(std::string name, int number, const std::string& folder, PoolMember member, LeaseLedger& ledger);
  std::string admin_socket() const { return folder_ + "/" + host().name() + ".sock"; }
  std::unique_ptr<admin::Admin::Stub> admin() const;
  // Returns when the present process registered with a scheduler; 0: not yet.
  int64_t registered_at() const { return registered_at_; }

 protected:
  std::vector<std::string> words() const override;
  Environment environment() const override;
  void on_log_line(const std::string& line) override;
  void on_end() override;

 private:
  const std::string folder_;
  const PoolMember member_;
  LeaseLedger& ledger_;
  int64_t registered_at_ = 0;
};

}  // namespace gpupool::testing
