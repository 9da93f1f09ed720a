#include "server/softgpu/memory/shared_event.h"

#include <sys/random.h>

#include "server/softgpu/memory/shared_file.h"

namespace gpupool::softgpu {
namespace {

using Place = SharedEvents::Place;

class OpenEvent final : public SharedEvent {
 public:
  OpenEvent(SharedFile& file, uint32_t index, std::shared_ptr<void> owner) : owner_(std::move(owner)), file_(file), index_(index) {}
  ~OpenEvent() override {
    if (file_.mine()) file_.drop_event(index_);
  }

  SharedEventName name() const override { return {index_, {place().id[0].load(), place().id[1].load()}}; }

  // The recorder is stored before the number becomes visible: the old value may name a dead process.
  uint64_t record() override {
    return file_.exclusively([this] {
      const uint64_t number = place().recorded.load() + 1;
      mark(number).recorder = file_.self();
      place().recorded = number;
      return number;
    });
  }

  void completed(uint64_t number) override {
    auto& highest = mark(number).completed;
    uint64_t before = highest.load();
    while (before < number && !highest.compare_exchange_weak(before, number)) {
    }
  }

  uint64_t latest() const override { return place().recorded.load(); }

  bool passed(uint64_t number) const override {
    if (number == 0 || mark(number).completed.load() >= number) return true;
    return !file_.alive_still(mark(number).recorder.load());
  }

 private:
  Place& place() const { return file_.state().events.places[index_]; }
  SharedEvents::Mark& mark(uint64_t number) const { return place().marks[number % SharedEvents::kMarks]; }

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
      Place& place = events.places[i];
      if (place.used()) continue;
      place.recorded = 0;
      for (auto& mark : place.marks) mark.completed = mark.recorder = 0;
      for (int half = 0; half < 2; ++half) place.id[half] = id[half];
      if (i >= events.in_use) events.in_use = i + 1;
      file.hold_event(i);
      return std::make_shared<OpenEvent>(file, i, owner);
    }
    return nullptr;
  };
  return file.exclusively(taken);
}

std::shared_ptr<SharedEvent> open_shared_event(SharedFile& file, const SharedEventName& name, std::shared_ptr<void> owner) {
  if (name.index >= kMaxSharedEvents) return nullptr;
  Place& place = file.state().events.places[name.index];
  const auto opened = [&]() -> std::shared_ptr<SharedEvent> {
    if (!place.used() || place.id[0] != name.id[0] || place.id[1] != name.id[1]) return nullptr;
    file.hold_event(name.index);
    return std::make_shared<OpenEvent>(file, name.index, owner);
  };
  return file.exclusively(opened);
}

}  // namespace gpupool::softgpu
