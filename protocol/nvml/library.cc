#include "protocol/nvml/library.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "protocol/driver/bus_ids.h"
#include "protocol/driver/driver_version.h"
#include "protocol/driver/pci_address.h"

namespace gpupool::nvml {
namespace {

constexpr uintptr_t kFirstHandle = 0x67700010;  // followed by every 16th number
constexpr uintptr_t kHandleStep = 16;

std::atomic<Library*> current{nullptr};

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
  // In a forked child the mutex may be locked by a thread that does not exist there, and the connections
  // belong to the parent.
  pthread_atfork(nullptr, nullptr, [] {
    Library* const parents = current.load();
    Library* const own = new (std::nothrow) Library;
    if (!own) return;
    own->users_ = parents->users_;
    own->may_be_empty_ = parents->may_be_empty_;
    own->complained_ = parents->complained_;
    for (const auto& source : parents->sources_) source->abandon();
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
  auto opened = open_sources(may_be_empty_);
  if (!opened) {
    close();
    if (!std::exchange(complained_, true)) report_failure(opened.error());
    return NVML_ERROR_DRIVER_NOT_LOADED;
  }
  sources_ = std::move(*opened);
  std::vector<hello::Device*> described;
  for (const auto& source : sources_) {
    for (size_t place = 0; place < source->devices().size(); ++place) {
      auto device = std::make_unique<Device>();
      device->index = static_cast<unsigned>(devices_.size());
      device->source = source.get();
      device->place = place;
      device->description = source->devices()[place];
      device->description.uuid.resize(16);
      described.push_back(&device->description);
      devices_.push_back(std::move(device));
    }
  }
  cuda::make_bus_ids_unique(described);
  for (const auto& device : devices_) {
    const cuda::PciAddress address =
        cuda::parse_pci_address(device->description.pci_bus_id).value_or(cuda::PciAddress{});
    device->domain = address.domain;
    device->bus = address.bus;
    device->slot = address.device;
  }
  open_ = true;
  return NVML_SUCCESS;
}

void Library::close() {
  devices_.clear();
  sources_.clear();
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
  if (sources_.empty()) return cuda::kNewestSupportedVersion;
  int version = sources_.front()->driver_version();
  for (const auto& source : sources_) version = std::min(version, source->driver_version());
  return version;
}

nvmlReturn_t copy_text(const std::string& text, char* to, unsigned size) {
  if (!to) return NVML_ERROR_INVALID_ARGUMENT;
  if (size <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

}  // namespace gpupool::nvml
