// Memory and events that the session shares with other sessions of its tenant on this host, and access to
// those of other sessions (docs/adr, "Sharing memory between processes").
//
// Each shared object gets a name that contains a secret. A session that presents the name to its own worker
// makes poold ask this worker, which answers on the control thread, so a busy or blocked executor does not
// delay other sessions. Nothing is held open for a shared object: the driver creates a descriptor on each
// request.
//
// fetch() belongs to the executor's thread and waits for a limited time; all other functions: any thread.
#pragma once
#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "protocol/wire/sharing.h"
#include "server/worker/device/device_api.h"
#include "server/worker/session/control.h"

namespace gpupool::worker {

struct ContextState;

class ExportedHandles {
 public:
  static constexpr size_t kMost = 65536;

  struct Memory {
    CUmemGenericAllocationHandle handle = 0;
    uint64_t size = 0;
    int device = 0;             // kOfNone: a multicast object, which has no memory of its own
    uint64_t handle_types = 0;  // requested by the client
    uint64_t charge = 0;        // id of quota::Ledger::share(); 0 for a multicast object
    static constexpr int kOfNone = -1;
    bool is_multicast() const { return device == kOfNone; }
  };
  struct Event {
    CUevent event = nullptr;
    const ContextState* context = nullptr;
    CUipcEventHandle handle{};
  };

  // `control` may be null: nothing can be fetched from other sessions. `patience`: limit of a fetch.
  ExportedHandles(const DeviceApi& api, Control* control, uint64_t server, uint64_t session,
                  std::chrono::milliseconds patience = std::chrono::milliseconds(2000));
  ~ExportedHandles();
  ExportedHandles(const ExportedHandles&) = delete;
  ExportedHandles& operator=(const ExportedHandles&) = delete;

  // Makes the object available under a name, the same one until withdraw(). CUDA_ERROR_OUT_OF_MEMORY: too
  // many.
  CUresult export_handle(const Memory& memory, wire::SharedName* name);
  CUresult export_handle(const Event& event, wire::SharedName* name);
  // Ends availability; sessions that have imported the object keep it. Call before the driver releases it.
  // For memory, returns true if another session has imported it, or may have.
  bool withdraw(CUmemGenericAllocationHandle memory);
  void withdraw(CUevent event);
  void withdraw_events(const ContextState& context);
  // For checkpoints: suspend() makes memory unavailable until resume(), which sets its new handle under the
  // same name; forget() invalidates the name. nullopt: another session has already imported the memory.
  using Suspended =
      std::map<uint64_t, std::array<uint8_t, 16>>::node_type;  // empty: the memory is not shared
  std::optional<Suspended> suspend(CUmemGenericAllocationHandle memory);
  void resume(Suspended suspended, CUmemGenericAllocationHandle now);
  void forget(Suspended suspended);

  struct Fetched {
    ~Fetched();
    Fetched() = default;
    Fetched(const Fetched&) = delete;
    Fetched& operator=(const Fetched&) = delete;
    std::optional<Memory> memory;  // handle is 0
    int descriptor = -1;           // refers to the memory; -1: an event
    std::optional<CUipcEventHandle> event;
    bool own = false;  // shared by this session itself
  };
  // Fetches what this or another session of the tenant shares under the name. CUDA_ERROR_INVALID_VALUE:
  // nothing is shared under the name for this tenant. CUDA_ERROR_MAP_FAILED: no answer in time.
  CUresult fetch(const wire::SharedName& name, Fetched* to);

 private:
  using Secret = std::array<uint8_t, 16>;
  struct Exported {
    std::optional<Memory> memory;
    std::optional<Event> event;
    bool fetched = false, suspended = false;
  };

  CUresult add(const Exported& exported, std::map<uint64_t, Secret>& by_object, uint64_t object,
               wire::SharedName* name);
  bool withdraw(std::map<uint64_t, Secret>& by_object, uint64_t object);
  CUresult take(const Secret& secret, server::packet::ShareFound* found, int* descriptor);
  void answer(const server::ControlMessage& message);
  void answered(server::ControlMessage message);
  static int take_descriptor(int socket);

  const DeviceApi& api_;
  Control* const control_;
  const uint64_t server_, session_;
  const std::chrono::milliseconds patience_;

  // Held while the driver creates a descriptor, so that the memory is not released meanwhile.
  std::mutex exported_mutex_;
  std::map<Secret, Exported> exported_;
  std::map<uint64_t, Secret> by_memory_, by_event_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  uint64_t request_ = 0;
  std::optional<server::ControlMessage> answer_;
};

}  // namespace gpupool::worker
