#include "scheduler/core/queue.h"

namespace gpupool::scheduler {

WaitingRequest& Queue::add(WaitingRequest waiter) {
  lines_[waiter.request.priority()][waiter.tenant][{waiter.arrived, waiter.number}] = waiter.stream;
  if (!waiter.request.id().empty()) by_id_[{waiter.tenant, waiter.request.id()}] = waiter.stream;
  return waiting_[waiter.stream] = std::move(waiter);
}

void Queue::remove(Stream stream) {
  const auto found = waiting_.find(stream);
  if (found == waiting_.end()) return;
  const WaitingRequest& waiter = found->second;
  lines_[waiter.request.priority()][waiter.tenant].erase({waiter.arrived, waiter.number});
  by_id_.erase({waiter.tenant, waiter.request.id()});
  waiting_.erase(found);
}

WaitingRequest* Queue::find(Stream stream) {
  const auto found = waiting_.find(stream);
  return found == waiting_.end() ? nullptr : &found->second;
}

WaitingRequest* Queue::find(const std::string& tenant, const std::string& request_id) {
  const auto found = by_id_.find({tenant, request_id});
  return found == by_id_.end() ? nullptr : find(found->second);
}

FairOrder::FairOrder(const Queue& queue, lease::Priority priority,
                     const std::map<std::string, Tenant>& tenants, const PoolTotal& total)
    : total_(total) {
  for (const auto& [name, line] : queue.lines(priority)) {
    if (line.empty()) continue;
    const Tenant& tenant = tenants.at(name);
    push({.share = 0,
          .arrived = {},
          .tenant = &tenant,
          .milli = tenant.milli,
          .memory = tenant.memory,
          .at = line.begin(),
          .end = line.end()});
  }
}

void FairOrder::push(Turn turn) {
  Tenant would = {};
  would.milli = turn.milli;
  would.memory = turn.memory;
  turn.share = would.share(total_) / turn.tenant->quota.weight();
  turn.arrived = turn.at->first;
  turns_.push(std::move(turn));
}

Stream FairOrder::next() {
  if (turns_.empty()) return 0;
  last_ = turns_.top();
  turns_.pop();
  const Stream stream = last_->at->second;
  ++last_->at;  // advance now: granting erases this entry
  return stream;
}

void FairOrder::granted(uint64_t milli, uint64_t memory) {
  last_->milli += milli;
  last_->memory += memory;
  again();
}

void FairOrder::again() {
  if (last_->at != last_->end) push(*last_);
}

}  // namespace gpupool::scheduler
