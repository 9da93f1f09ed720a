#include "client/process.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "client/calls/host_function.h"
#include "client/log.h"

namespace gpupool::client {
namespace {

struct Process {
  std::mutex mutex;
  std::atomic<Session*> session{nullptr};
  std::atomic<bool> tried{false};
  std::atomic<bool> forked{false};  // this is a child of a process that had a session
  CUresult result = CUDA_ERROR_NOT_INITIALIZED;
};

Process& process() {
  static Process* const only = new Process;
  return *only;
}

std::chrono::milliseconds milliseconds_from(const char* variable, std::chrono::milliseconds otherwise) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value <= 0) {
    complain("%s=%s is no number of milliseconds above 0; using %lld", variable, text,
             static_cast<long long>(otherwise.count()));
    return otherwise;
  }
  return std::chrono::milliseconds(value);
}

// More than one helps where one core cannot fill the link.
unsigned bulk_connections() {
  const unsigned otherwise = std::clamp(std::thread::hardware_concurrency() / 2, 1u, 4u);
  const char* text = std::getenv("GPUPOOL_BULK_CONNECTIONS");
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  if (*end == '\0' && *text >= '0' && *text <= '9' && value <= wire::kMaxBulkConnections) return static_cast<unsigned>(value);
  complain("GPUPOOL_BULK_CONNECTIONS=%s is no number from 0 to %u; using %u", text, wire::kMaxBulkConnections, otherwise);
  return otherwise;
}

CUresult connect(Process& self) {
  Settings settings;
  const char* server = std::getenv("GPUPOOL");
  if (!server || !*server) {
    complain("no server is named: set GPUPOOL=tcp://HOST:PORT, or start the program with pool-run --server");
    return CUDA_ERROR_NO_DEVICE;
  }
  settings.server = server;
  const char* sync = std::getenv("GPUPOOL_SYNC");
  settings.every_call_waits = sync && std::strcmp(sync, "1") == 0;
  settings.connect_timeout = milliseconds_from("GPUPOOL_CONNECT_TIMEOUT_MS", settings.connect_timeout);
  settings.dead_peer_timeout = milliseconds_from("GPUPOOL_DEAD_PEER_TIMEOUT_MS", settings.dead_peer_timeout);
  settings.bulk_connections = bulk_connections();
  auto session = Session::open(settings);
  if (!session) {
    complain("cannot use the server %s: %s", server, session.error().message.c_str());
    return CUDA_ERROR_NO_DEVICE;
  }
  if ((*session)->devices().empty()) return CUDA_ERROR_NO_DEVICE;
  (*session)->on_host_callback(run_host_function);
  pthread_atfork(nullptr, nullptr, [] {
    process().forked = true;
    // The server must see the connection end with this process, however long its children live.
    if (Session* parents = process().session.load()) parents->abandon();
  });
  self.session.store(session->release(), std::memory_order_release);  // never destroyed
  return CUDA_SUCCESS;
}

}  // namespace

CUresult initialise() {
  Process& self = process();
  if (self.forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (self.session.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  std::lock_guard lock(self.mutex);
  if (!self.tried.exchange(true)) self.result = connect(self);
  return self.result;
}

CUresult ready(Session** session) {
  Process& self = process();
  *session = self.session.load(std::memory_order_acquire);
  if (*session == nullptr || self.forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  return CUDA_SUCCESS;
}

}  // namespace gpupool::client
