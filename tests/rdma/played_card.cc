#include "tests/rdma/played_card.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <span>
#include <utility>

namespace gpupool::testing::played {
namespace {

void run(Card& card) {
  std::unique_lock lock(card.mutex);
  while (true) {
    if (step()) {
      // Others may post, poll and break connections between any two requests.
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else {
      card.changed.wait_for(lock, std::chrono::milliseconds(10));
    }
  }
}

void push(ibv_cq* queue, const ibv_wc& completion) {
  auto& to = *static_cast<Queue*>(queue);
  to.done.push_back(completion);
  if (!std::exchange(to.is_armed, false) || !to.channel) return;
  auto& channel = *static_cast<Channel*>(to.channel);
  channel.events.push_back(queue);
  raise(channel.fd);
}

void report(Pair& pair, ibv_event_type what) {
  auto& context = *static_cast<Context*>(pair.context);
  context.events.push_back(what);
  raise(context.async_fd);
}

void write_to(uint64_t address, std::span<const std::byte> bytes) {
  if (!bytes.empty()) std::memcpy(reinterpret_cast<void*>(address), bytes.data(), bytes.size());
}

// Collects the bytes that a request sends. False: its memory is not registered.
bool gather(const Pair& pair, const Request& request, std::vector<std::byte>& bytes) {
  if (request.is_inline) {
    bytes = request.inlined;
    return true;
  }
  for (const ibv_sge& part : request.parts) {
    if (!covers(part.lkey, pair.pd, part.addr, part.length, 0)) return false;
    const auto* const data = reinterpret_cast<const std::byte*>(part.addr);
    bytes.insert(bytes.end(), data, data + part.length);
  }
  return true;
}

Pair* reachable(Card& card, const Pair& from) {
  const auto found = card.pairs.find(from.peer);
  if (found == card.pairs.end()) return nullptr;
  Pair& to = *found->second;
  const bool open = to.state == IBV_QPS_RTR || to.state == IBV_QPS_RTS;
  return open && to.peer == from.qp_num ? &to : nullptr;
}

ibv_wc_status send_message(Pair& from, Pair& to, const Request& request) {
  std::vector<std::byte> bytes;
  if (!gather(from, request, bytes)) return IBV_WC_LOC_PROT_ERR;
  auto* const receives = static_cast<Receives*>(to.srq);
  if (!receives || receives->posted.empty()) return IBV_WC_RNR_RETRY_EXC_ERR;
  const Receive place = receives->posted.front();
  receives->posted.pop_front();
  if (bytes.size() > place.place.length) return IBV_WC_REM_INV_REQ_ERR;
  write_to(place.place.addr, bytes);
  ibv_wc completion{};
  completion.wr_id = place.id;
  completion.opcode = IBV_WC_RECV;
  completion.byte_len = static_cast<uint32_t>(bytes.size());
  completion.imm_data = request.immediate;
  completion.wc_flags = IBV_WC_WITH_IMM;
  completion.qp_num = to.qp_num;
  push(to.recv_cq, completion);
  return IBV_WC_SUCCESS;
}

ibv_wc_status access_memory(Pair& from, Pair& to, const Request& request, bool half) {
  const ibv_sge& local = request.parts.front();
  const bool reads = request.opcode == IBV_WR_RDMA_READ;
  const int right = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  if (!covers(local.lkey, from.pd, local.addr, local.length, reads ? IBV_ACCESS_LOCAL_WRITE : 0))
    return IBV_WC_LOC_PROT_ERR;
  if ((to.rights & static_cast<unsigned>(right)) == 0 ||
      !covers(request.key, to.pd, request.remote, local.length, right)) {
    report(to, IBV_EVENT_QP_ACCESS_ERR);
    fail(to);
    return IBV_WC_REM_ACCESS_ERR;
  }
  const uint64_t from_address = reads ? request.remote : local.addr;
  const uint64_t to_address = reads ? local.addr : request.remote;
  const uint64_t bytes = half ? local.length / 2 : local.length;
  write_to(to_address, {reinterpret_cast<const std::byte*>(from_address), bytes});
  return IBV_WC_SUCCESS;
}

ibv_wc_status execute(Card& card, Pair& from, const Request& request, bool half = false) {
  Pair* const to = reachable(card, from);
  if (!to) return IBV_WC_RETRY_EXC_ERR;
  if (request.opcode == IBV_WR_SEND_WITH_IMM) return half ? IBV_WC_SUCCESS : send_message(from, *to, request);
  return access_memory(from, *to, request, half);
}

void execute_at_cut(Card& card, Pair& from, const Request& request) {
  if (card.fate == Fate::executed) (void)execute(card, from, request);
  if (card.fate == Fate::half) (void)execute(card, from, request, true);
  if (card.fate != Fate::late || request.opcode != IBV_WR_RDMA_WRITE) return;
  std::vector<std::byte> bytes;
  if (gather(from, request, bytes))
    card.late.push_back({from.peer, request.key, request.remote, std::move(bytes)});
}

}  // namespace

Card& card() {
  static Card* const made = [] {
    auto* const one = new Card;
    one->thread = std::thread([one] { run(*one); });
    one->thread.detach();
    return one;
  }();
  return *made;
}

int make_events() {
  return ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE | EFD_NONBLOCK);
}
void raise(int events) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(events, &one, sizeof one);
}
bool take(int events) {
  uint64_t one = 0;
  return ::read(events, &one, sizeof one) == sizeof one;
}

void complete(Pair& pair, const Request& request, ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS && !request.is_signaled) return;
  ibv_wc completion{};
  completion.wr_id = request.id;
  completion.status = status;
  completion.qp_num = pair.qp_num;
  push(pair.send_cq, completion);
}

void fail(Pair& pair) {
  pair.state = IBV_QPS_ERR;
  for (const Request& request : pair.requests) complete(pair, request, IBV_WC_WR_FLUSH_ERR);
  pair.requests.clear();
}

bool covers(uint32_t key, const ibv_pd* domain, uint64_t address, uint64_t bytes, int rights) {
  const auto found = card().regions.find(key);
  if (found == card().regions.end()) return false;
  const Region& region = *found->second;
  const auto start = reinterpret_cast<uint64_t>(region.addr);
  return region.pd == domain && (region.rights & rights) == rights && address >= start &&
         bytes <= region.length && address - start <= region.length - bytes;
}

bool step() {
  Card& card = played::card();
  if (card.is_held) return false;
  auto at = card.pairs.upper_bound(card.next_turn);
  for (size_t left = card.pairs.size(); left != 0; --left, ++at) {
    if (at == card.pairs.end()) at = card.pairs.begin();
    if (!at->second->requests.empty()) break;
    if (left == 1) return false;
  }
  if (card.pairs.empty()) return false;
  Pair& pair = *at->second;
  card.next_turn = at->first;
  const Request request = std::move(pair.requests.front());
  pair.requests.pop_front();
  if (!card.is_cut && card.until_cut != 0 && --card.until_cut == 0) {
    card.is_cut = true;
    execute_at_cut(card, pair, request);
  }
  const auto status = card.is_cut ? IBV_WC_RETRY_EXC_ERR : execute(card, pair, request);
  complete(pair, request, status);
  if (status != IBV_WC_SUCCESS)
    fail(pair);
  else
    ++card.executed;
  return true;
}

}  // namespace gpupool::testing::played
