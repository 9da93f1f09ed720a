// Registered host memory (cuMemHostRegister) whose device address the program has asked for. Its first and
// last pages may hold unrelated data, so they cannot be protected as those of mirrors.h are. Instead the
// device has a copy at its own address, and `seen` holds the last contents common to both. Before work that
// may use the copy, bytes that the program has changed since are sent; after a wait, bytes that the device
// has changed are fetched. Both use the client's own stream, so that the host never gets older device
// contents. The comparison is by byte, so that host and device may write different parts at the same time.
// Each time all of the memory is compared: intended for flags and small results, not for gigabytes.
//
// Thread-safe; one mutex, held while data is transferred, never while waiting for the program's work.
#pragma once
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "client/session/session.h"

namespace gpupool::client {

class ComparedCopies {
 public:
  // True if there is any registered memory with a device copy. Costs one atomic load at each launch and each
  // wait.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }

  // Sends the memory's contents to its device copy. `device`: memory of the context, of the same size.
  CUresult add(Context& context, void* host, uint64_t bytes, bool read_only, CUdeviceptr device);
  // Forgets the memory; wait first, as changes by the device are lost. Returns the device copy, which the
  // caller must free; 0: there was none.
  CUdeviceptr remove(const void* host);
  // Forgets the memory whose device copy belongs to the context. Returns its host addresses.
  std::vector<uint64_t> forget_context(const Context& context);

  // Call after a host function: sends its changes. The function's stream must wait for the client's own
  // streams of the returned contexts.
  std::vector<Context*> after_host_function();
  // Call before work of the (resolved) stream that may use any memory of the device.
  CUresult before_work(Context& context, CUstream stream);
  // The same for a copy or fill of these bytes of device memory.
  CUresult before_use(Context& context, CUstream stream, uint64_t address, uint64_t bytes);
  // Call after a wait for a (resolved) stream or for a whole context; fetches the device's changes. `last`:
  // last_use() from before the wait; work given to the device since may still be running.
  CUresult after_stream(Context& context, CUstream stream, uint64_t last);
  CUresult after_context(Context& context, uint64_t last);
  uint64_t last_use() const { return last_use_.load(); }
  // Call after any other wait.
  CUresult after_other_wait();
  // True if the device copy of these bytes may be newer than the host's.
  bool device_may_be_newer(uint64_t host, uint64_t bytes) const;
  // Returns the host address for a device address.
  std::optional<uint64_t> host_of(uint64_t device) const;

 private:
  struct Copy {
    uint64_t host = 0, device = 0, bytes = 0;
    bool read_only = false;
    Session* session = nullptr;
    uint64_t context = 0;
    std::vector<std::byte> seen;
    // (context, stream) pairs whose work may have changed the copy since.
    std::set<std::pair<uint64_t, uint64_t>> pending_writers;
    void used_by(const Context& user, CUstream stream);
  };

  static CUresult push(Copy& copy);
  CUresult fetch(Copy& copy);
  template <class Done>
  CUresult after(const Done& done);

  mutable std::mutex mutex_;
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> last_use_{0};
  std::map<uint64_t, Copy> copies_;  // by host address
};

ComparedCopies& compared_copies();

}  // namespace gpupool::client
