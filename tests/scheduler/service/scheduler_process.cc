#include "tests/scheduler/service/scheduler_process.h"

#include <signal.h>

#include <fstream>

#include "protocol/lease/key.h"
#include "tests/support/poold_process.h"

namespace gpupool::testing {

void SchedulerProcess::start() {
  const std::string port_file = folder_.path() / "port";
  std::filesystem::remove(port_file);
  std::vector<std::string> words{program_path("pool-scheduler"),
                                 "--listen",
                                 address(),
                                 "--port-file",
                                 port_file,
                                 "--store",
                                 store_.empty() ? "sqlite:" + (folder_.path() / "pool.db").string() : store_,
                                 "--key",
                                 key_file(),
                                 "--audit-file",
                                 audit_file()};
  words.insert(words.end(), options_.begin(), options_.end());
  process_ = std::make_unique<Process>(words, Environment{});
  const bool up =
      eventually([&] { return std::filesystem::exists(port_file) || is_zombie(process_->pid()); });
  std::ifstream(port_file) >> port_;
  if (!up || port_ == 0 || (store_.empty() && !await_log(" leads ")))
    throw std::runtime_error("pool-scheduler did not come up:\n" + log());
}

void SchedulerProcess::kill() {
  process_->signal(SIGKILL);
  process_->wait();
}

std::string SchedulerProcess::public_key_file() const {
  return folder_.write("public.pem", lease::SigningKey::read(key_file())->public_key().pem());
}

int SchedulerProcess::stop() {
  process_->signal(SIGTERM);
  return process_->wait();
}

}  // namespace gpupool::testing
