// The handle table: the client's object for each handle that it has minted. One table for all sessions of the
// process, so that a handle identifies its session and handles of different servers cannot be confused.
//
// find() takes no lock; every launch uses it. An object lives until its handle is retired. Using a handle
// while another thread destroys its object is an error of the program, as with CUDA. Invalid and stale
// handles are detected by their generation. Thread-safe.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/calls/handles.h"
#include "protocol/driver/cuda_header.h"

namespace gpupool::client {

using cuda::Kind;

class Session;

// The client's state of a minted handle. Derived types add state (functions, streams, ...).
struct Object {
  virtual ~Object() = default;
  uint64_t handle = 0;
  uint64_t context = 0;        // current context when it was made; 0: none
  Session* session = nullptr;  // session whose server has the object
  // Makes the object available to calls of session `other`. CUDA_SUCCESS: it is. Some objects are created on
  // further servers when first used there.
  virtual CUresult ensure_loaded(Session& other) {
    return session == &other ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
};

class HandleTable {
 public:
  HandleTable() = default;
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // Returns 0 if the table is full (4 million live handles).
  uint64_t mint(Kind kind, std::unique_ptr<Object> object);
  void retire(uint64_t handle);
  // Returns null unless the handle is live and has this kind.
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
  std::mutex mutex_;  // guards the members below
  uint32_t used_ = 0;
  std::vector<uint32_t> free_;
};

// The table of the process; never destroyed.
inline HandleTable& handles() {
  static HandleTable* const only = new HandleTable;
  return *only;
}

}  // namespace gpupool::client
