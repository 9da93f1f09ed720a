#include "server/softgpu/memory/shared_event.h"

#include <sys/random.h>

#include "server/softgpu/memory/shared_file.h"

namespace gpupool::softgpu {
namespace {

using EventSlot = SharedEvents::EventSlot;

class OpenEvent final : public SharedEvent {
 public:
  OpenEvent(SharedFile& file, uint32_t index, std::shared_ptr<void> owner)
      : owner_(std::move(owner)), file_(file), index_(index) {}
  ~OpenEvent() override {
    if (file_.in_owner_process()) file_.remove_event_user(index_);
  }

  SharedEventName name() const override {
    return {index_, {event_slot().id[0].load(), event_slot().id[1].load()}};
  }

  // The recorder is stored before the number becomes visible: the old value may name a dead process.
  uint64_t record() override {
    return file_.exclusively([this] {
      const uint64_t number = event_slot().recorded.load() + 1;
      record_state(number).recorder = file_.own_process();
      event_slot().recorded = number;
      return number;
    });
  }

  void completed(uint64_t number) override {
    auto& highest = record_state(number).completed;
    uint64_t before = highest.load();
    while (before < number && !highest.compare_exchange_weak(before, number)) {
    }
  }

  uint64_t latest() const override { return event_slot().recorded.load(); }

  bool passed(uint64_t number) const override {
    if (number == 0 || record_state(number).completed.load() >= number) return true;
    return !file_.is_process_alive(record_state(number).recorder.load());
  }

 private:
  EventSlot& event_slot() const { return file_.state().events.event_slots[index_]; }
  SharedEvents::RecordState& record_state(uint64_t number) const {
    return event_slot().records[number % SharedEvents::kTrackedRecords];
  }

  const std::shared_ptr<void> owner_;  // keeps the file alive
  SharedFile& file_;
  const uint32_t index_;
};

}  // namespace

std::shared_ptr<SharedEvent> make_shared_event(SharedFile& file, std::shared_ptr<void> owner) {
  uint64_t id[2];
  if (getrandom(id, sizeof id, 0) != sizeof id) return nullptr;
  SharedEvents& events = file.state().events;
  const auto taken = [&]() -> std::shared_ptr<SharedEvent> {
    for (uint32_t i = 0; i < kMaxSharedEvents; ++i) {
      EventSlot& slot = events.event_slots[i];
      if (slot.used()) continue;
      slot.recorded = 0;
      for (auto& record : slot.records) record.completed = record.recorder = 0;
      for (int half = 0; half < 2; ++half) slot.id[half] = id[half];
      if (i >= events.in_use) events.in_use = i + 1;
      file.add_event_user(i);
      return std::make_shared<OpenEvent>(file, i, owner);
    }
    return nullptr;
  };
  return file.exclusively(taken);
}

std::shared_ptr<SharedEvent> open_shared_event(SharedFile& file, const SharedEventName& name,
                                               std::shared_ptr<void> owner) {
  if (name.index >= kMaxSharedEvents) return nullptr;
  EventSlot& slot = file.state().events.event_slots[name.index];
  const auto opened = [&]() -> std::shared_ptr<SharedEvent> {
    if (!slot.used() || slot.id[0] != name.id[0] || slot.id[1] != name.id[1]) return nullptr;
    file.add_event_user(name.index);
    return std::make_shared<OpenEvent>(file, name.index, owner);
  };
  return file.exclusively(opened);
}

}  // namespace gpupool::softgpu
