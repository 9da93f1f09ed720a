#include "client/process/process.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "client/lease/file.h"
#include "client/lease/helper.h"
#include "client/memory/busy_addresses.h"
#include "client/process/log.h"
#include "client/process/trace.h"
#include "client/streams/host_function.h"
#include "client/timeline/timeline.h"
#include "protocol/driver/driver_log.h"
#include "protocol/wire/commands.h"

namespace gpupool::client {
namespace {

struct Process {
  std::mutex mutex;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::unique_ptr<Session>> left;  // never destroyed: see Session::leave()
  Devices devices;
  std::atomic<bool> ready{false};
  std::atomic<bool> tried{false};
  std::atomic<bool> forked{false};  // this is a child of a process that had connected
  CUresult result = CUDA_ERROR_NOT_INITIALIZED;
  std::string servers;  // as GPUPOOL names them; after a lease was acquired: lease:FILE
};

Process& process() {
  static Process* const only = new Process;
  return *only;
}

// Returns PREFIX/bin/pool-lease for a library in PREFIX/lib/client/libcuda.so.1.
std::string holder_program() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&holder_program), &here) == 0 || !here.dli_fname)
    return "pool-lease";
  char* const real = ::realpath(here.dli_fname, nullptr);
  std::string path = real ? real : here.dli_fname;
  std::free(real);
  for (int up = 0; up < 3; ++up) path.erase(std::min(path.size(), path.rfind('/')));
  return path + "/bin/pool-lease";
}

// Resolves GPUPOOL: servers, a lease file, or a pool, which is asked for a lease.
Result<std::vector<LeasedServer>> find_servers(std::string text) {
  if (text.starts_with("pool://")) {
    const auto file = acquire_lease(holder_program(), text, ::program_invocation_short_name);
    if (!file) return file.error();
    text = std::string(kLeaseScheme) + *file;
  }
  auto servers = named_servers(text);
  if (servers) process().servers = text;
  return servers;
}

// Opens a session. The scheduler only grants live hosts, so a leased server is retried until connect_timeout.
Result<std::unique_ptr<Session>> open_session(Settings& settings, const LeasedServer& server) {
  const bool leased = !server.token.empty();
  settings.server = server.endpoint.text();
  if (leased) settings.token = server.token;
  const auto end = std::chrono::steady_clock::now() + settings.connect_timeout;
  for (auto pause = std::chrono::milliseconds(50);; pause *= 2) {
    auto session = Session::open(settings, server.endpoint);
    const bool passes =
        !session &&
        (session.error().code == ErrorCode::unavailable || session.error().code == ErrorCode::lost ||
         session.error().code == ErrorCode::reset || session.error().code == ErrorCode::closed);
    if (!leased || !passes || std::chrono::steady_clock::now() + pause > end) return session;
    log_debug("%s; retrying", session.error().message.c_str());
    std::this_thread::sleep_for(pause);
  }
}

// Returns where a lease goes on that has left this server, number `index` of the lease. pool-lease may hear
// of a move later than the server.
std::optional<LeasedServer> next_place(const LeasedServer& server, size_t index) {
  if (!server.next.empty()) return server.next.front();
  if (server.token.empty()) return std::nullopt;
  const auto place_in = [&](const std::vector<LeasedServer>& servers) -> std::optional<LeasedServer> {
    const LeasedServer& known = servers[index];
    if (known.token != server.token) return known;
    if (!known.next.empty()) return known.next.front();
    return std::nullopt;
  };
  const auto now = await_servers(
      [&](const auto& servers) { return index >= servers.size() || place_in(servers).has_value(); });
  return now && index < now->size() ? place_in(*now) : std::nullopt;
}

// Opens the session with server `index` of the lease or list. Waits, without limit, while the lease is
// suspended: poold keeps no connection for it, so the client asks again. When it is resumed, it may be at
// another server.
Result<std::unique_ptr<Session>> open_when_resumed(Settings& settings, LeasedServer server, size_t index) {
  constexpr std::chrono::milliseconds kPause{500};
  constexpr int kMostMoves = 5;  // of the lease while the program starts
  for (bool told = false;; told = true) {
    auto session = open_session(settings, server);
    for (int moves = 0; moves < kMostMoves && !session && session.error().code == ErrorCode::refused;
         ++moves) {
      const auto next = next_place(server, index);
      if (!next) break;
      server = *next;
      session = open_session(settings, server);
    }
    if (session || session.error().code != ErrorCode::suspended) return session;
    if (!told) {
      log_warning("server %s: %s; the program waits until then", settings.server.c_str(),
                  session.error().message.c_str());
    }
    std::this_thread::sleep_for(kPause);
    const auto now = servers_now();
    if (now && index < now->size()) server = (*now)[index];
  }
}

// Opens sessions with all servers, or none, because the user expects every listed GPU.
bool open_sessions(const char* text, std::vector<std::unique_ptr<Session>>& sessions) {
  const auto servers = find_servers(text);
  if (!servers) {
    log_error("GPUPOOL=%s: %s", text, servers.error().message.c_str());
    return false;
  }
  if (servers->size() > kMaxServers) {
    log_error("GPUPOOL lists %zu servers; at most %u are supported", servers->size(), kMaxServers);
    return false;
  }
  Settings settings = settings_from_environment();
  for (const LeasedServer& server : *servers) {
    auto session = open_when_resumed(settings, server, sessions.size());
    if (!session) {
      log_error("cannot use the server %s: %s", settings.server.c_str(), session.error().message.c_str());
      return false;
    }
    sessions.push_back(std::move(*session));
    ++settings.index;
  }
  return true;
}

// Ends the sessions that are not `needed`.
void leave_unless(Process& self, const std::function<bool(const Session&)>& needed) {
  const auto gone = std::stable_partition(self.sessions.begin(), self.sessions.end(),
                                          [&](const auto& session) { return needed(*session); });
  for (auto session = gone; session != self.sessions.end(); ++session) {
    (*session)->leave();
    self.left.push_back(std::move(*session));
  }
  self.sessions.erase(gone, self.sessions.end());
}

// Numbers the devices and creates their primary contexts. Closes the sessions with servers that have no
// visible device.
bool take_devices(Process& self) {
  std::vector<OfferedDevice> offered;
  for (const auto& session : self.sessions) {
    const auto& devices = session->offered();
    for (size_t i = 0; i < devices.size(); ++i)
      offered.push_back({session.get(), static_cast<int>(i), devices[i]});
  }
  self.devices = make_devices(offered, std::getenv("CUDA_VISIBLE_DEVICES"));
  leave_unless(self, [&](const Session& session) {
    return std::any_of(self.devices.begin(), self.devices.end(),
                       [&](const auto& device) { return device->session == &session; });
  });
  const auto busy = busy_addresses();  // taken before the servers' ranges are reserved
  for (const auto& session : self.sessions) {
    if (auto taken = session->take_addresses(); !taken) {
      log_error("cannot use the server %s: %s", session->server().c_str(), taken.error().message.c_str());
      return false;
    }
    session->on_host_callback(dispatch_host_function);
  }
  for (const auto& device : self.devices) {
    auto context = std::make_unique<Context>();
    device->primary = context.get();
    context->device = device.get();
    context->primary = true;
    context->active = false;
    context->id = static_cast<unsigned long long>(device->ordinal) + 1;
    device->session->mint(Kind::context, std::move(context));
  }
  for (const auto& session : self.sessions) {
    for (const auto& other : self.sessions) {
      if (session == other) continue;
      const wire::AddressRange taken{other->addresses().base(), other->addresses().size()};
      (void)session->post(wire::Command::avoid_addresses, nullptr, taken);
    }
    for (const wire::AddressRange& range : busy)
      (void)session->post(wire::Command::avoid_addresses, nullptr, range);
  }
  return !self.devices.empty();
}

// For the timeline. All servers are asked before the first is awaited, so that the exit takes no longer with
// several servers that do not answer than with one.
void fetch_last_records(Process& self) {
  constexpr std::chrono::seconds kLongest{1};
  for (const auto& session : self.sessions) session->ask_for_last_records();
  const auto deadline = transport::Clock::now() + kLongest;
  for (const auto& session : self.sessions) session->await_last_records(deadline);
}

CUresult connect(Process& self) {
  const char* servers = std::getenv("GPUPOOL");
  if (!servers || !*servers) {
    log_error(
        "no server configured: set GPUPOOL=tcp://HOST:PORT or pool://SCHEDULER:PORT, or start the program "
        "with pool-run");
    return CUDA_ERROR_NO_DEVICE;
  }
  if (const char* const file = std::getenv("GPUPOOL_TIMELINE"); file && *file) {
    const auto warn = [](const std::string& message) { log_warning("%s", message.c_str()); };
    if (timeline::start(file, ::program_invocation_short_name, warn)) trace::enabled.store(true);
  }
  if (!open_sessions(servers, self.sessions) || !take_devices(self)) {
    leave_unless(self, [](const Session&) { return false; });
    return CUDA_ERROR_NO_DEVICE;
  }
  pthread_atfork(nullptr, nullptr, [] {
    process().forked = true;
    timeline::stop_in_child();
    // The servers must see the connections close when this process ends, even if its children live on.
    for (const auto& parents : process().sessions) parents->abandon();
  });
  // Later calls, from other libraries' destructors, still work.
  std::atexit([] {
    if (process().forked) return;
    fetch_last_records(process());
    for (const auto& session : process().sessions) session->say_leaving();
  });
  // If the user has chosen a number, open the bulk connections now, so that the first copy uses them.
  if (std::getenv("GPUPOOL_BULK_CONNECTIONS")) {
    for (const auto& session : self.sessions) session->links().open_now();
  }
  self.ready.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult initialise() {
  Process& self = process();
  trace::start();
  error_listener.store(
      [](const char* text, size_t length) {
        cuda::log_for_program(cuda::Severity::error, {text, length});
      },
      std::memory_order_relaxed);
  if (self.forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (self.ready.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  std::lock_guard lock(self.mutex);
  if (!self.tried.exchange(true)) self.result = connect(self);
  return self.result;
}

CUresult ready() {
  const Process& self = process();
  const bool good =
      self.ready.load(std::memory_order_acquire) && !self.forked.load(std::memory_order_relaxed);
  return good ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

Result<std::vector<LeasedServer>> servers_now() {
  return named_servers(process().servers);
}

Result<std::vector<LeasedServer>> await_servers(const LeaseCondition& holds) {
  constexpr std::chrono::milliseconds kLimit{2000};
  return await_named_servers(process().servers, holds, kLimit);
}

const std::vector<std::unique_ptr<Session>>& sessions() {
  return process().sessions;
}

const Devices& devices() {
  return process().devices;
}

Device* find_device(int ordinal) {
  const Devices& all = devices();
  return ordinal >= 0 && ordinal < static_cast<int>(all.size()) ? all[ordinal].get() : nullptr;
}

Session* session_of(uint64_t address, Session* first) {
  if (first && first->addresses().knows(address)) return first;
  for (const auto& session : sessions()) {
    if (session.get() != first && session->addresses().knows(address)) return session.get();
  }
  return nullptr;
}

}  // namespace gpupool::client

// For our libnvidia-ml.so.1 in the same process, which must not acquire a lease of its own: the servers of
// this process, as GPUPOOL would name them. Returns the length of the text; 0: not connected.
extern "C" __attribute__((visibility("default"))) size_t gpupool_client_servers(char* text, size_t size) {
  using namespace gpupool::client;
  if (ready() != CUDA_SUCCESS) return 0;
  const std::string& servers = process().servers;
  if (text && servers.size() < size) servers.copy(text, servers.size()), text[servers.size()] = '\0';
  return servers.size();
}

// For the Python package (client/python/gpupool), which changes no settings that cuInit has already used.
// Waits for a cuInit in progress. Returns 0: cuInit was not called; 1: connected; 2: cuInit failed, and so
// will later calls; 3: this is a child of a process that had connected, where CUDA cannot be used.
extern "C" __attribute__((visibility("default"))) int gpupool_client_state() {
  using namespace gpupool::client;
  Process& self = process();
  if (self.forked) return 3;
  const std::lock_guard lock(self.mutex);
  return !self.tried ? 0 : self.ready ? 1 : 2;
}
