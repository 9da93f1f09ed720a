#include "server/softgpu/memory/shared_device.h"

#include <dirent.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "server/softgpu/memory/device_turns.h"
#include "server/softgpu/memory/shared_file.h"

namespace gpupool::softgpu {
namespace {

bool valid_instance(const std::string& name) {
  if (name.empty() || name.size() > 64 || name[0] == '.') return false;
  return name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
         std::string::npos;
}

class OpenDevice final : public SharedDevice, public std::enable_shared_from_this<OpenDevice> {
 public:
  bool join(const std::string& path, uint64_t memory_bytes, std::string* error) {
    if (!file_.join(path, memory_bytes, error)) return false;
    turns_ = make_turns(file_);
    key_ = std::hash<std::string>()(path) | 1;
    return true;
  }

  uint64_t total_bytes() const override { return file_.state().total_bytes; }

  uint64_t free_bytes() const override {
    file_.clear_dead_slots();
    const uint64_t used = charged(), total = total_bytes();
    return used < total ? total - used : 0;
  }

  uint64_t process_bytes() const override { return file_.state().slots[file_.slot()].charged; }

  std::shared_ptr<Memory> allocate(uint64_t size) override {
    if (size == 0 || size > total_bytes() || !file_.in_owner_process()) return nullptr;
    if (!try_charge(size)) {
      file_.clear_dead_slots();
      if (!try_charge(size)) return nullptr;
    }
    const auto charge = std::make_shared<Charge>(shared_from_this(), size);
    auto memory = create_memory(size, [charge] { charge->end(); });
    if (!memory)
      uncharge(size);
    else
      remember(memory, charge);
    return memory;
  }

  int export_memory(const std::shared_ptr<Memory>& memory, uint64_t handle_types, int* kept) override {
    std::shared_ptr<Charge> charge;
    {
      std::lock_guard lock(charges_mutex_);
      const auto known = charges_.find(memory.get());
      if (known == charges_.end()) return -1;  // memory of another device
      charge = known->second.lock();
    }
    const int descriptor =
        softgpu::export_memory(memory, {.device = key(), .handle_types = handle_types}, kept);
    const auto label = descriptor < 0 ? std::nullopt : read_label(descriptor);
    if (label && charge && share(*charge, label->id)) return descriptor;
    if (descriptor >= 0) close(descriptor);
    return -1;
  }

  std::shared_ptr<Memory> import_memory(int descriptor, bool* refused) override {
    *refused = false;
    const auto label = read_label(descriptor);
    if (!label || label->device != key() || !file_.in_owner_process()) return nullptr;
    const auto charge = std::make_shared<Charge>(shared_from_this(), label->size);
    if (!add_reference(label->id, label->size)) {
      *refused = true;
      return nullptr;
    }
    charge->id = label->id;
    auto memory = softgpu::import_memory(descriptor, [charge] { charge->end(); });
    if (!memory)
      charge->end();
    else
      remember(memory, charge);
    return memory;
  }

  std::shared_ptr<SharedEvent> make_event() override {
    if (!file_.in_owner_process()) return nullptr;
    if (auto event = make_shared_event(file_, shared_from_this())) return event;
    file_.clear_dead_slots();
    return make_shared_event(file_, shared_from_this());
  }
  std::shared_ptr<SharedEvent> open_event(const SharedEventName& name) override {
    return file_.in_owner_process() ? open_shared_event(file_, name, shared_from_this()) : nullptr;
  }

  DeviceTurns& turns() override { return *turns_; }

  void park() override {
    const std::lock_guard lock(parked_mutex_);
    parked_ += file_.state().slots[file_.slot()].charged.exchange(0);
  }
  bool unpark() override {
    file_.clear_dead_slots();
    const std::lock_guard lock(parked_mutex_);
    if (parked_ != 0 && !try_charge(parked_)) return false;
    parked_ = 0;
    return true;
  }
  void leave_at_exit() { file_.leave_at_exit(); }

 private:
  // The charge of one Memory object: to this process alone or, if id is not 0, one of the holders of shared
  // memory.
  struct Charge {
    Charge(std::shared_ptr<OpenDevice> device, uint64_t size) : device(std::move(device)), size(size) {}
    void end() {
      device->forget(memory);
      if (id != 0)
        device->drop_reference(id);
      else
        device->uncharge(size);
    }
    const std::shared_ptr<OpenDevice> device;
    const uint64_t size;
    const Memory* memory = nullptr;
    std::atomic<uint64_t> id{0};
  };
  void remember(const std::shared_ptr<Memory>& memory, const std::shared_ptr<Charge>& charge) {
    std::lock_guard lock(charges_mutex_);
    charge->memory = memory.get();
    charges_[memory.get()] = charge;
  }
  void forget(const Memory* memory) {
    std::lock_guard lock(charges_mutex_);
    charges_.erase(memory);
  }
  bool share(Charge& charge, uint64_t id) {
    std::lock_guard lock(holdings_mutex_);
    if (charge.id != 0) return true;
    const bool added = file_.exclusively([&] {
      if (!file_.state().shared.add(id, 0, charge.size, file_.slot())) return false;
      file_.state().slots[file_.slot()].charged -= charge.size;
      return true;
    });
    if (!added) return false;
    charge.id = id;
    ++holdings_[id];
    return true;
  }
  bool add_reference(uint64_t id, uint64_t size) {
    std::lock_guard lock(holdings_mutex_);
    const auto join = [&] {
      if (file_.state().shared.join(id, file_.slot())) return true;
      const uint64_t used = charged();
      if (used > total_bytes() || size > total_bytes() - used) return false;
      return file_.state().shared.add(id, 0, size, file_.slot());
    };
    if (!holdings_.contains(id) && !file_.exclusively(join)) return false;
    ++holdings_[id];
    return true;
  }
  void drop_reference(uint64_t id) {
    std::lock_guard lock(holdings_mutex_);
    if (--holdings_[id] != 0) return;
    holdings_.erase(id);
    if (file_.in_owner_process()) file_.state().shared.leave(id, file_.slot());
  }
  uint64_t charged() const {
    uint64_t sum = file_.state().shared.bytes(0);
    for (const auto& slot : file_.state().slots) sum += slot.charged;
    return sum;
  }
  bool try_charge(uint64_t size) {
    return file_.exclusively([&] {
      const uint64_t used = charged();
      if (used > total_bytes() || size > total_bytes() - used) return false;
      file_.state().slots[file_.slot()].charged += size;
      return true;
    });
  }
  void uncharge(uint64_t size) {
    if (!file_.in_owner_process()) return;
    const std::lock_guard lock(parked_mutex_);
    if (parked_ >= size)
      parked_ -= size;
    else
      file_.state().slots[file_.slot()].charged -= size;
  }

  mutable SharedFile file_;
  std::unique_ptr<DeviceTurns> turns_;
  std::mutex holdings_mutex_;
  std::map<uint64_t, uint32_t> holdings_;  // shared memory by id: how often this process holds it
  std::mutex charges_mutex_;
  std::map<const Memory*, std::weak_ptr<Charge>> charges_;
  std::mutex parked_mutex_;
  uint64_t parked_ = 0;
};

// There is one object per file and process: closing any descriptor of a file drops all the process's record
// locks on it.
struct Registry {
  std::mutex mutex;
  std::condition_variable closed;
  struct Entry {
    std::weak_ptr<OpenDevice> device;
    int owner;  // process id: a forked child opens the device anew
  };
  std::map<std::string, Entry> entries;             // until the device is closed
  std::vector<std::shared_ptr<SharedDevice>> kept;  // by at_exit()
  int prepared_in = 0;  // process id in which at_exit is registered and abandoned files are removed
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

void close_device(const std::string& path, OpenDevice* device) {
  auto& r = registry();
  std::lock_guard lock(r.mutex);
  delete device;
  const auto entry = r.entries.find(path);
  if (entry != r.entries.end() && entry->second.owner == getpid() && entry->second.device.expired())
    r.entries.erase(entry);
  r.closed.notify_all();
}

// Programs exit without destroying their references to the device; its file has to be removed nevertheless.
void at_exit() {
  auto& r = registry();
  std::unique_lock lock(r.mutex, std::try_to_lock);
  if (!lock) return;  // a thread is still using the registry; the next process that opens a device cleans up
  for (auto& [path, entry] : r.entries) {
    if (entry.owner != getpid()) continue;
    if (const auto device = entry.device.lock()) {
      device->leave_at_exit();
      r.kept.push_back(device);  // closing it needs the registry's mutex
    }
  }
}

// Removes the files of devices whose processes have all been killed.
void sweep(Registry& r, const std::string& prefix) {
  constexpr int kMaxFiles = 1000;
  DIR* directory = opendir("/dev/shm");
  if (directory == nullptr) return;
  int seen = 0;
  while (const dirent* item = readdir(directory)) {
    const std::string path = std::string("/dev/shm/") + item->d_name;
    if (path.compare(0, prefix.size(), prefix) != 0) continue;
    const auto entry = r.entries.find(path);
    if (entry != r.entries.end() && entry->second.owner == getpid()) continue;
    SharedFile::remove_if_abandoned(path);
    if (++seen == kMaxFiles) break;
  }
  closedir(directory);
}

}  // namespace

std::shared_ptr<SharedDevice> SharedDevice::open(int ordinal, uint64_t memory_bytes, std::string* error) {
  std::string ignored;
  if (error == nullptr) error = &ignored;
  const char* instance = std::getenv("SOFTGPU_INSTANCE");
  const std::string name = instance != nullptr && *instance != '\0' ? instance : "default";
  if (!valid_instance(name)) {
    *error = "SOFTGPU_INSTANCE must be 1 to 64 letters, digits, '_', '-' or '.', not starting with '.'";
    return nullptr;
  }
  if (!reserve_range()) {
    *error = "cannot reserve softgpu's address range: it is already in use in this process";
    return nullptr;
  }
  const std::string prefix = "/dev/shm/softgpu-" + std::to_string(geteuid()) + "-";
  const std::string path = prefix + name + "-" + std::to_string(ordinal);

  auto& r = registry();
  std::unique_lock lock(r.mutex);
  for (auto entry = r.entries.find(path); entry != r.entries.end() && entry->second.owner == getpid();
       entry = r.entries.find(path)) {
    if (auto device = entry->second.device.lock()) return device;
    r.closed.wait(lock);  // another thread is closing it
  }
  if (r.prepared_in != getpid()) {
    if (r.prepared_in == 0) std::atexit(at_exit);  // inherited by forked children
    r.prepared_in = getpid();
    sweep(r, prefix);
  }
  auto fresh = std::make_unique<OpenDevice>();
  if (!fresh->join(path, memory_bytes, error)) return nullptr;
  std::shared_ptr<OpenDevice> device(fresh.release(), [path](OpenDevice* d) { close_device(path, d); });
  r.entries[path] = {device, getpid()};
  return device;
}

}  // namespace gpupool::softgpu
