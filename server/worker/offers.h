// What the session shares with other sessions of its tenant on this host, and how it gets at theirs (docs/adr, "Sharing memory
// between processes").
//
// The client gets a name with a secret in it for each thing; who shows that name to its own worker has poold ask this one, which
// answers from the control thread, so a busy or blocked executor holds nobody up. Nothing is kept open for what was offered:
// the driver makes a descriptor when it is asked for.
//
// fetch() belongs to the executor's thread and waits, bounded; the rest to any.
#pragma once
#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "protocol/wire/sharing.h"
#include "server/worker/control.h"
#include "server/worker/device_api.h"

namespace gpupool::worker {

struct ContextState;

class Offers {
 public:
  static constexpr size_t kMost = 65536;

  struct Memory {
    CUmemGenericAllocationHandle handle = 0;
    uint64_t size = 0;
    int device = 0;             // kOfNone: a multicast object, which has no memory of its own
    uint64_t handle_types = 0;  // as its client asked for
    uint64_t charge = 0;        // quota::Ledger::share(); 0 for a multicast object
    static constexpr int kOfNone = -1;
    bool is_multicast() const { return device == kOfNone; }
  };
  struct Event {
    CUevent event = nullptr;
    const ContextState* context = nullptr;
    CUipcEventHandle handle{};
  };

  // `control` may be null: then there are no others.
  Offers(const DeviceApi& api, Control* control, uint64_t server, uint64_t session,
         std::chrono::milliseconds patience = std::chrono::milliseconds(2000));
  ~Offers();
  Offers(const Offers&) = delete;
  Offers& operator=(const Offers&) = delete;

  // The same name each time, until withdraw(). CUDA_ERROR_OUT_OF_MEMORY: too many.
  CUresult offer(const Memory& memory, wire::SharedName* name);
  CUresult offer(const Event& event, wire::SharedName* name);
  // From now on nobody gets it; who has it keeps it. Before the driver is told to release it. True: somebody has it, or may have.
  bool withdraw(CUmemGenericAllocationHandle memory);
  void withdraw(CUevent event);
  void withdraw_events(const ContextState& context);
  // For a checkpoint: nobody gets it until renew(), where the driver knows it by another handle, and the client by the same name. nullopt:
  // somebody has got it already.
  using Held = std::map<uint64_t, std::array<uint8_t, 16>>::node_type;  // empty: it is not offered
  std::optional<Held> hold(CUmemGenericAllocationHandle memory);
  void renew(Held held, CUmemGenericAllocationHandle now);
  void forget(Held held);

  struct Fetched {
    ~Fetched();
    Fetched() = default;
    Fetched(const Fetched&) = delete;
    Fetched& operator=(const Fetched&) = delete;
    std::optional<Memory> memory;  // without a handle
    int descriptor = -1;           // of the memory
    std::optional<CUipcEventHandle> event;
    bool own = false;  // this session's
  };
  // What another session of the tenant, or this one, has offered under the name. CUDA_ERROR_INVALID_VALUE: there is no such
  // offer, for this tenant; CUDA_ERROR_MAP_FAILED: no answer.
  CUresult fetch(const wire::SharedName& name, Fetched* to);

 private:
  using Secret = std::array<uint8_t, 16>;
  struct Offer {
    std::optional<Memory> memory;
    std::optional<Event> event;
    bool fetched = false, held = false;
  };

  CUresult add(const Offer& offer, std::map<uint64_t, Secret>& by_object, uint64_t object, wire::SharedName* name);
  bool withdraw(std::map<uint64_t, Secret>& by_object, uint64_t object);
  CUresult take(const Secret& secret, server::ControlHeader* header, int* descriptor);
  void answer(const server::ControlMessage& wanted);
  void answered(server::ControlMessage message);
  static int take_descriptor(int socket);

  const DeviceApi& api_;
  Control* const control_;
  const uint64_t server_, session_;
  const std::chrono::milliseconds patience_;

  std::mutex offers_mutex_;  // held while the driver makes a descriptor: what is offered is not released meanwhile
  std::map<Secret, Offer> offers_;
  std::map<uint64_t, Secret> by_memory_, by_event_;

  std::mutex mutex_;  // what follows
  std::condition_variable changed_;
  uint64_t request_ = 0;
  std::optional<server::ControlMessage> answer_;
};

}  // namespace gpupool::worker
