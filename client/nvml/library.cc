#include "client/nvml/library.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "client/bus_ids.h"
#include "client/log.h"
#include "protocol/cuda/cuda_header.h"

namespace gpupool::nvml {
namespace {

constexpr uintptr_t kFirstHandle = 0x67700010;  // then every 16th
constexpr uintptr_t kHandleStep = 16;

std::atomic<Library*> current{nullptr};

// What GPUPOOL says. A program that asks a pool for GPUs does so through libcuda.so.1; nothing is asked for only to be looked at.
std::string servers_of_program() {
  const char* const text = std::getenv("GPUPOOL");
  if (!text || std::strncmp(text, "pool://", 7) != 0) return text ? text : "";
  void* const cuda = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!cuda) return "";
  using Servers = size_t (*)(char*, size_t);
  const auto servers = reinterpret_cast<Servers>(::dlsym(cuda, "gpupool_client_servers"));
  char known[8192] = "";
  if (servers && servers(known, sizeof known) >= sizeof known) known[0] = '\0';
  ::dlclose(cuda);
  return known;
}

}  // namespace

int Device::attribute(int id, int otherwise) const {
  for (const auto& attribute : description.attributes) {
    if (attribute.id == id) return attribute.value;
  }
  return otherwise;
}

Library& Library::get() {
  Library* known = current.load(std::memory_order_acquire);
  if (known) return *known;
  auto fresh = std::make_unique<Library>();
  if (!current.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel)) return *known;
  // The child's mutex may be held by a thread that it does not have, and its connections are the parent's.
  pthread_atfork(nullptr, nullptr, [] {
    Library* const parents = current.load();
    Library* const own = new (std::nothrow) Library;
    if (!own) return;
    own->users_ = parents->users_;
    own->may_be_empty_ = parents->may_be_empty_;
    own->complained_ = parents->complained_;
    for (const auto& server : parents->servers_) server->abandon();
    current.store(own);
  });
  return *fresh.release();
}

nvmlReturn_t Library::initialise(bool may_be_empty) {
  try {
    const std::lock_guard lock(mutex_);
    if (!open_) {
      may_be_empty_ = may_be_empty;
      if (const nvmlReturn_t opened = open(); opened != NVML_SUCCESS) return opened;
    }
    ++users_;
    return NVML_SUCCESS;
  } catch (...) {
    return NVML_ERROR_UNKNOWN;
  }
}

nvmlReturn_t Library::shutdown() {
  const std::lock_guard lock(mutex_);
  if (users_ == 0) return NVML_ERROR_UNINITIALIZED;
  if (--users_ == 0) close();
  return NVML_SUCCESS;
}

nvmlReturn_t Library::ensure_open() {
  if (users_ == 0) return NVML_ERROR_UNINITIALIZED;
  return open_ ? NVML_SUCCESS : open();
}

nvmlReturn_t Library::open() {
  const std::string text = servers_of_program();
  const auto fail = [&](const std::string& why) {
    close();
    if (!std::exchange(complained_, true)) client::complain("NVML: %s", why.c_str());
    return NVML_ERROR_DRIVER_NOT_LOADED;
  };
  if (text.empty() && may_be_empty_) return open_ = true, NVML_SUCCESS;
  if (text.empty()) return fail("no server is named: set GPUPOOL=tcp://HOST:PORT, or start the program with pool-run");
  const auto named = client::named_servers(text);
  if (!named) return fail(named.error().message);
  const client::Settings settings = client::settings_from_environment();
  for (size_t at = 0; at < named->size(); ++at) {
    auto server = Server::open(settings, [text, at]() -> Result<client::LeasedServer> {
      auto now = client::named_servers(text);
      if (!now) return now.error();
      if (at >= now->size()) return Error{ErrorCode::refused, "the lease has another server now"};
      return std::move((*now)[at]);
    });
    if (!server) return fail("cannot use the server " + named->at(at).endpoint.text() + ": " + server.error().message);
    servers_.push_back(std::move(*server));
  }
  std::vector<hello::Device*> described;
  for (const auto& server : servers_) {
    for (size_t place = 0; place < server->devices().size(); ++place) {
      auto device = std::make_unique<Device>();
      device->index = static_cast<unsigned>(devices_.size());
      device->server = server.get();
      device->place = place;
      device->description = server->devices()[place];
      device->description.uuid.resize(16);
      described.push_back(&device->description);
      devices_.push_back(std::move(device));
    }
  }
  client::make_bus_ids_unique(described);
  for (const auto& device : devices_) {
    std::sscanf(device->description.pci_bus_id.c_str(), "%x:%x:%x", &device->domain, &device->bus, &device->slot);
  }
  open_ = true;
  return NVML_SUCCESS;
}

void Library::close() {
  devices_.clear();
  servers_.clear();
  open_ = false;
}

nvmlDevice_t Library::handle_of(const Device& device) {
  return reinterpret_cast<nvmlDevice_t>(kFirstHandle + device.index * kHandleStep);
}

Device* Library::find(nvmlDevice_t handle) const {
  const uintptr_t number = reinterpret_cast<uintptr_t>(handle) - kFirstHandle;
  if (number % kHandleStep != 0 || number / kHandleStep >= devices_.size()) return nullptr;
  return devices_[number / kHandleStep].get();
}

int Library::driver_version() const {
  int version = CUDA_VERSION;
  for (const auto& server : servers_) version = std::min(version, server->driver_version());
  return version;
}

nvmlReturn_t copy_text(const std::string& text, char* to, unsigned size) {
  if (!to) return NVML_ERROR_INVALID_ARGUMENT;
  if (size <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

}  // namespace gpupool::nvml
