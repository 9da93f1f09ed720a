#include "server/softgpu/memory/shared_file.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace gpupool::softgpu {
namespace {

constexpr uint64_t kMagic = 0x5550'4754'464f'5301;  // changes with the layout
constexpr uint32_t kVersion = 3;

struct flock record(int64_t byte, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

std::string system_error(const std::string& what, const std::string& path) {
  return what + " " + path + ": " + std::generic_category().message(errno);
}

}  // namespace

bool SharedFile::lock_byte(int64_t byte) const {
  auto lock = record(byte, F_WRLCK);
  // The kernel's deadlock detection considers processes, not threads, and so reports deadlocks that do not
  // exist.
  while (fcntl(file_, F_SETLKW, &lock) != 0) {
    if (errno != EINTR && errno != EDEADLK) return false;
    sched_yield();
  }
  return true;
}

void SharedFile::unlock_byte(int64_t byte) const {
  auto lock = record(byte, F_UNLCK);
  fcntl(file_, F_SETLK, &lock);
}

bool SharedFile::locked_elsewhere(int64_t byte) const {
  auto lock = record(byte, F_WRLCK);
  // On error assume that the process lives.
  return fcntl(file_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool SharedFile::is_slot_alive(uint32_t slot) const {
  return slot == slot_ || locked_elsewhere(kFirstSlotByte + slot);
}

bool SharedFile::is_process_alive(uint64_t process) const {
  const auto slot = static_cast<uint32_t>(process & 0xffff);
  return slot < kMaxProcesses && state_->slots[slot].owners == process >> 16 && is_slot_alive(slot);
}

bool SharedFile::join(const std::string& path, uint64_t total_bytes, std::string* error) {
  path_ = path;
  owner_ = getpid();
  for (bool retry = true; retry;) {
    retry = false;
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (file_ < 0) {
      *error = system_error("cannot open", path);
      return false;
    }
    const bool locked = lock_byte(kLifecycleByte);
    if (!locked) *error = system_error("cannot lock", path);
    const bool joined = locked && join_locked(path, total_bytes, &retry, error);
    if (locked) unlock_byte(kLifecycleByte);
    if (joined) return true;
    if (state_ != nullptr) munmap(state_, sizeof(SharedState));
    state_ = nullptr;
    close(file_);
    file_ = -1;
  }
  return false;
}

bool SharedFile::join_locked(const std::string& path, uint64_t total_bytes, bool* retry, std::string* error) {
  struct stat info {};
  if (fstat(file_, &info) != 0) {
    *error = system_error("cannot stat", path);
    return false;
  }
  if (info.st_nlink == 0) {  // removed by its last user between our open and our lock
    *retry = true;
    return false;
  }
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    *error = path + " is not a private file of this user; remove it or set SOFTGPU_INSTANCE to another name";
    return false;
  }
  if (info.st_size != 0 && info.st_size != static_cast<off_t>(sizeof(SharedState))) {
    *error = path +
             " is not the state of a softgpu device (wrong size); remove it or set SOFTGPU_INSTANCE to "
             "another name";
    return false;
  }
  if (info.st_size == 0 && ftruncate(file_, sizeof(SharedState)) != 0) {
    *error = system_error("cannot resize", path);
    return false;
  }
  void* mapped = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) {
    *error = system_error("cannot map", path);
    return false;
  }
  state_ = static_cast<SharedState*>(mapped);
  if (state_->magic != 0 &&
      (state_->magic != kMagic || state_->version != kVersion || state_->slot_count != kMaxProcesses)) {
    *error = path +
             " is not the state of a softgpu device of this version; remove it or set SOFTGPU_INSTANCE to "
             "another name";
    return false;
  }
  auto all_slots = record(kFirstSlotByte, F_WRLCK);
  all_slots.l_len = kMaxProcesses;
  const bool anyone = fcntl(file_, F_GETLK, &all_slots) != 0 || all_slots.l_type != F_UNLCK;
  if (!anyone) {  // new, or all its users have died: start clean
    state_ = new (mapped) SharedState{};
    state_->version = kVersion;
    state_->slot_count = kMaxProcesses;
    state_->total_bytes = total_bytes;
    state_->magic = kMagic;
  }
  clear_dead_slots_locked();
  for (uint32_t i = 0; i < kMaxProcesses; ++i) {
    if (state_->slots[i].pid != 0 || locked_elsewhere(kFirstSlotByte + i)) continue;
    if (!lock_byte(kFirstSlotByte + i)) break;
    slot_ = i;
    state_->slots[i].charged = 0;
    ++state_->slots[i].owners;
    state_->slots[i].pid = static_cast<uint64_t>(owner_);
    return true;
  }
  *error = path + ": " + std::to_string(kMaxProcesses) +
           " processes (the maximum) already use this softgpu device";
  return false;
}

void SharedFile::clear_dead_slots() {
  std::lock_guard lock(mutex_);
  bool any = false;
  for (uint32_t i = 0; i < kMaxProcesses && !any; ++i) any = state_->slots[i].pid != 0 && !is_slot_alive(i);
  if (!any || !lock_byte(kLifecycleByte)) return;
  clear_dead_slots_locked();
  unlock_byte(kLifecycleByte);
}

void SharedFile::clear_dead_slots_locked() {
  for (uint32_t i = 0; i < kMaxProcesses; ++i) {
    auto& slot = state_->slots[i];
    if (slot.pid == 0 || is_slot_alive(i)) continue;
    state_->waiting[i / 64] &= ~(uint64_t{1} << (i % 64));
    slot.charged = 0;
    release_slot_resources(i);
    slot.pid = 0;
  }
}

void SharedFile::release_slot_resources(uint32_t slot) {
  state_->shared.leave_all(slot);
  state_->events.leave_all(slot);
}

void SharedFile::add_event_user(uint32_t index) {
  std::lock_guard lock(events_mutex_);
  ++events_[index];
  state_->events.event_slots[index].users[slot_ / 64].fetch_or(uint64_t{1} << slot_ % 64);
}

void SharedFile::remove_event_user(uint32_t index) {
  std::lock_guard lock(events_mutex_);
  if (--events_[index] != 0) return;
  events_.erase(index);
  state_->events.leave(index, slot_);
}

bool SharedFile::in_owner_process() const {
  return getpid() == owner_;
}

// Processes about to end have cleared the process id in their slot, but hold its lock until the very end.
bool SharedFile::has_other_processes() const {
  for (uint32_t i = 0; i < kMaxProcesses; ++i) {
    if (i != slot_ && state_->slots[i].pid != 0 && locked_elsewhere(kFirstSlotByte + i)) return true;
  }
  return false;
}

void SharedFile::leave() {
  if (state_ == nullptr) return;
  if (in_owner_process()) {
    lock_byte(kLifecycleByte);
    state_->waiting[slot_ / 64] &= ~(uint64_t{1} << (slot_ % 64));
    state_->slots[slot_].charged = 0;
    release_slot_resources(slot_);
    state_->slots[slot_].pid = 0;
    if (!has_other_processes()) unlink(path_.c_str());
    close(file_);  // drops all record locks of this process on the file
  }
  munmap(state_, sizeof(SharedState));
  state_ = nullptr;
  file_ = -1;
}

void SharedFile::leave_at_exit() {
  if (state_ == nullptr || !in_owner_process() || !lock_byte(kLifecycleByte)) return;
  release_slot_resources(slot_);
  state_->slots[slot_].pid = 0;
  if (!has_other_processes()) unlink(path_.c_str());
  unlock_byte(kLifecycleByte);
}

void SharedFile::remove_if_abandoned(const std::string& path) {
  SharedFile file;
  file.file_ = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file.file_ < 0) return;
  struct stat info {};
  uint64_t magic = 0;
  auto lock = record(kLifecycleByte, F_WRLCK);
  // A process that holds any lock uses the file, so this function never waits for locks.
  bool abandoned = fcntl(file.file_, F_SETLK, &lock) == 0 && fstat(file.file_, &info) == 0 &&
                   S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
                   info.st_size == static_cast<off_t>(sizeof(SharedState)) &&
                   pread(file.file_, &magic, sizeof magic, 0) == sizeof magic && magic == kMagic;
  if (abandoned) {
    auto slots = record(kFirstSlotByte, F_WRLCK);
    slots.l_len = kMaxProcesses;
    abandoned = fcntl(file.file_, F_GETLK, &slots) == 0 && slots.l_type == F_UNLCK;
  }
  // A process that has the file open and waits for the lock finds it unlinked and creates a new one.
  if (abandoned) unlink(path.c_str());
  close(file.file_);
}

}  // namespace gpupool::softgpu
