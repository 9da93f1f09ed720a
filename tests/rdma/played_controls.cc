// The functions of played_verbs.h.
#include <cstring>
#include <utility>

#include "tests/rdma/played_card.h"

#pragma GCC visibility push(default)
namespace gpupool::testing::played {

void cut_after(uint64_t requests, Fate fate) {
  const Lock lock(card().mutex);
  card().until_cut = requests;
  card().fate = fate;
}
bool is_cut() {
  const Lock lock(card().mutex);
  return card().is_cut;
}
void mend() {
  const Lock lock(card().mutex);
  card().is_cut = false;
  card().until_cut = 0;
}
size_t deliver_late() {
  const Lock lock(card().mutex);
  size_t written = 0;
  for (const Late& one : std::exchange(card().late, {})) {
    const auto to = card().pairs.find(one.pair);
    if (to == card().pairs.end()) continue;
    const Pair& pair = *to->second;
    const bool open = pair.state == IBV_QPS_RTR || pair.state == IBV_QPS_RTS;
    if (!open || !covers(one.key, pair.pd, one.address, one.bytes.size(), IBV_ACCESS_REMOTE_WRITE)) continue;
    std::memcpy(reinterpret_cast<void*>(one.address), one.bytes.data(), one.bytes.size());
    ++written;
  }
  return written;
}
void hold() {
  const Lock lock(card().mutex);
  card().is_held = true;
}
void release() {
  const Lock lock(card().mutex);
  card().is_held = false;
  card().changed.notify_all();
}
uint64_t executed() {
  const Lock lock(card().mutex);
  return card().executed;
}
void set_port(bool up) {
  const Lock lock(card().mutex);
  card().port_is_up = up;
}
void lose_device() {
  const Lock lock(card().mutex);
  card().is_lost = true;
  for (const auto& [number, pair] : card().pairs) fail(*pair);
  for (Context* const context : card().contexts) {
    context->events.push_back(IBV_EVENT_DEVICE_FATAL);
    raise(context->async_fd);
  }
}
void bring_back_device() {
  const Lock lock(card().mutex);
  card().is_lost = false;
}
size_t queue_pairs() {
  const Lock lock(card().mutex);
  return card().pairs.size();
}
size_t regions() {
  const Lock lock(card().mutex);
  return card().regions.size();
}
size_t posted_buffers() {
  const Lock lock(card().mutex);
  size_t count = 0;
  for (const Receives* const one : card().receives) count += one->posted.size();
  return count;
}

}  // namespace gpupool::testing::played
#pragma GCC visibility pop
