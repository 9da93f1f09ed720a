#include "tests/chaos/machines.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <stdexcept>

#include "tests/support/poold_process.h"

namespace gpupool::testing {

int64_t time_of_day() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void Daemon::start() {
  process_ = host_.start(words(), environment());
  read_ = 0;
  std::vector<pid_t> children;
  if (!eventually(
          [&] { return !(children = children_of(process_->pid())).empty() || is_zombie(process_->pid()); }) ||
      children.empty()) {
    throw std::runtime_error("a daemon of " + host_.name() + " did not start: " + process_->output());
  }
  pid_ = children[0];
}

bool Daemon::died() const {
  return process_ && is_zombie(process_->pid());
}

void Daemon::signal(int number) const {
  if (pid_ != 0) ::kill(pid_, number);  // await_end() reaps it, so the pid cannot have been reused
}

bool Daemon::await_end(std::chrono::milliseconds timeout) {
  if (!process_) return true;
  if (process_->wait(timeout) < 0) return false;
  process_->await_end_of_output();
  read_log();
  process_.reset();
  pid_ = 0;
  on_end();
  return true;
}

void Daemon::read_log() {
  if (!process_) return;
  const std::string output = process_->output();
  for (size_t end; (end = output.find('\n', read_)) != std::string::npos; read_ = end + 1) {
    const std::string line = output.substr(read_, end - read_);
    log_ += line + "\n";
    on_log_line(line);
  }
}

SchedulerMachine::SchedulerMachine(std::string name, int number, std::string folder,
                                   std::vector<std::string> store)
    : Daemon(std::move(name), number), folder_(std::move(folder)), store_(std::move(store)) {
  start();
}

std::vector<std::string> SchedulerMachine::words() const {
  std::vector<std::string> words{
      program_path("pool-scheduler"), "--listen",   address(),      "--key",
      folder_ + "/key.pem",           "--insecure", "--audit-file", folder_ + "/audit.json"};
  words.insert(words.end(), store_.begin(), store_.end());
  return words;
}

GpuMachine::GpuMachine(std::string name, int number, const std::string& folder, PoolMember member,
                       LeaseLedger& ledger)
    : Daemon(std::move(name), number), folder_(folder), member_(std::move(member)), ledger_(ledger) {
  start();
}

std::vector<std::string> GpuMachine::words() const {
  const std::string address = "tcp://" + host().address() + ":9700";
  std::vector<std::string> words{program_path("poold"),
                                 "--device",
                                 "softgpu",
                                 "--listen",
                                 address,
                                 "--insecure",
                                 "--idle-workers",
                                 "1",
                                 "--peers",
                                 Network::address(0) + "/24",
                                 "--admin-socket",
                                 admin_socket(),
                                 "--log-format",
                                 "json",
                                 "--pool-name",
                                 host().name(),
                                 "--pool-token-file",
                                 member_.token_file,
                                 "--pool-public-key",
                                 member_.public_key,
                                 "--pool-insecure"};
  for (const std::string& scheduler : member_.schedulers)
    words.insert(words.end(), {"--pool-scheduler", scheduler});
  return words;
}

Environment GpuMachine::environment() const {
  return {{"SOFTGPU_INSTANCE", host().name()},
          {"SOFTGPU_DEVICES", std::to_string(member_.gpus)},
          {"SOFTGPU_MEMORY", member_.memory}};
}

std::unique_ptr<admin::Admin::Stub> GpuMachine::admin() const {
  return admin::Admin::NewStub(
      grpc::CreateChannel("unix:" + admin_socket(), grpc::InsecureChannelCredentials()));
}

void GpuMachine::on_log_line(const std::string& line) {
  ledger_.log_line(host().name(), line);
  if (registered_at_ == 0 && line.find("\"scheduler_attends\"") != std::string::npos)
    registered_at_ = time_of_day();
}

void GpuMachine::on_end() {
  ledger_.poold_gone(host().name(), time_of_day());
  registered_at_ = 0;
}

}  // namespace gpupool::testing
