// The client's handles: what each minted handle stands for on this side. One table for all sessions of the process, so that
// a handle tells its session, and one of another server is never mistaken for one of this.
//
// find() takes no lock and is on the path of every launch. An object lives until its handle is retired; using a handle
// while another thread destroys the object is the program's error, as with CUDA. Handles that never were, or are stale,
// are found out by their generation. Any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/cuda/cuda_header.h"
#include "protocol/cuda/handles.h"

namespace gpupool::client {

using cuda::Kind;

class Session;

// What the client knows about a minted handle; specialised below client/ where more is known (functions, streams).
struct Object {
  virtual ~Object() = default;
  uint64_t handle = 0;
  uint64_t context = 0;        // current when it was made, 0: none
  Session* session = nullptr;  // whose server knows it
  // CUDA_SUCCESS: a call of that session may name it. Some objects go to other servers when they are first wanted there.
  virtual CUresult come_to(Session& other) { return session == &other ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
};

class HandleTable {
 public:
  HandleTable() = default;
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // 0 when the table is full (4 million live handles).
  uint64_t mint(Kind kind, std::unique_ptr<Object> object);
  void retire(uint64_t handle);
  // Null unless the handle is live and of that kind.
  Object* find(Kind kind, uint64_t handle) const;
  template <class T>
  T* find_as(Kind kind, uint64_t handle) const {
    return static_cast<T*>(find(kind, handle));
  }

 private:
  struct Slot {
    std::atomic<uint64_t> handle{0};
    std::atomic<Object*> object{nullptr};
    uint32_t generation = 0;
  };
  static constexpr size_t kPageSlots = 4096;
  static constexpr size_t kPages = 1024;
  Slot* slot(uint32_t index) const;

  std::atomic<Slot*> pages_[kPages]{};
  std::mutex mutex_;  // guards what follows
  uint32_t used_ = 0;
  std::vector<uint32_t> free_;
};

// Of the process; never destroyed.
inline HandleTable& handles() {
  static HandleTable* const only = new HandleTable;
  return *only;
}

}  // namespace gpupool::client
