// Memory that the program has registered (cuMemHostRegister) and whose address for kernels it has asked for. Its first and last pages hold
// other things of the program's, so they cannot be protected as those in mirrors.h are: the device has a copy at an address of its own, and
// `seen` is what both had last. Before work that may use it, what the program has changed since goes to the device; after a wait, what the
// device has changed comes back. Both ways in the client's own stream, or the host could get what the device had before. Byte by byte, so that host and device may write different parts at the same time. Each time all of it
// is compared: meant for flags and small results, not for gigabytes.
//
// Any thread; one mutex, held while data moves, never while work of the program's is waited for.
#pragma once
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "client/session.h"

namespace gpupool::client {

class Shadows {
 public:
  // Is there such memory? One load: what every launch and every wait pays.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }

  // The device gets what the program has; `device`: memory of the context's that is as large.
  CUresult add(Context& context, void* host, uint64_t bytes, bool read_only, CUdeviceptr device);
  // What the device has changed is lost: wait before. The device's memory, which is the caller's again; 0: there is none.
  CUdeviceptr remove(const void* host);
  // The program's addresses of what is gone with it.
  std::vector<uint64_t> forget_context(const Context& context);

  // After a host function: what it has changed goes to the device in the own streams of these contexts.
  std::vector<Context*> after_host_function();
  // Before work of the stream (resolved) that may use whatever the device can reach.
  CUresult before_work(Context& context, CUstream stream);
  // The same for a copy or fill of these bytes of the device's.
  CUresult before_use(Context& context, CUstream stream, uint64_t address, uint64_t bytes);
  // After a wait for a stream (resolved), or for all that a context had been given. `last`: last_use() before it; what has been given to the
  // device since may still be at it.
  CUresult after_stream(Context& context, CUstream stream, uint64_t last);
  CUresult after_context(Context& context, uint64_t last);
  uint64_t last_use() const { return last_use_.load(); }
  // After a wait for something else.
  CUresult after_something();
  // May the device have changed what of these bytes the program's memory does not have yet?
  bool is_behind(uint64_t host, uint64_t bytes) const;
  // The program's address of a device address.
  std::optional<uint64_t> host_of(uint64_t device) const;

 private:
  struct Shadow {
    uint64_t host = 0, device = 0, bytes = 0;
    bool read_only = false;
    Session* session = nullptr;
    uint64_t context = 0;
    std::vector<std::byte> seen;
    std::set<std::pair<uint64_t, uint64_t>> behind;  // contexts' streams whose work may have changed it since
    void used_by(const Context& user, CUstream stream);
  };

  static CUresult push(Shadow& shadow);
  CUresult fetch(Shadow& shadow);
  template <class Done>
  CUresult after(const Done& done);

  mutable std::mutex mutex_;
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> last_use_{0};
  std::map<uint64_t, Shadow> shadows_;  // by the program's address
};

Shadows& shadows();

}  // namespace gpupool::client
