// The played card's state, and what it does with requests; played_verbs.cc has the functions of libibverbs.
// Card::mutex guards everything.
#pragma once
#include <infiniband/verbs.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/rdma/played_verbs.h"

namespace gpupool::testing::played {

using Lock = std::unique_lock<std::mutex>;

struct Context : ibv_context {
  std::deque<ibv_event_type> events;
};
struct Queue : ibv_cq {
  std::deque<ibv_wc> done;
  bool is_armed = false;
};
struct Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
};
struct Receive {
  uint64_t id;
  ibv_sge place;
};
struct Receives : ibv_srq {
  std::deque<Receive> posted;
};
struct Region : ibv_mr {
  int rights = 0;
};
struct Request {
  uint64_t id = 0;
  ibv_wr_opcode opcode{};
  bool is_signaled = false;
  uint32_t immediate = 0;
  std::vector<ibv_sge> parts;
  std::vector<std::byte> inlined;
  bool is_inline = false;
  uint64_t remote = 0;
  uint32_t key = 0;
};
struct Pair : ibv_qp {
  std::deque<Request> requests;
  uint32_t peer = 0;
  unsigned rights = 0;
};
struct Late {
  uint32_t pair;
  uint32_t key;
  uint64_t address;
  std::vector<std::byte> bytes;
};

// All state of the played card.
struct Card {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint32_t, Pair*> pairs;
  std::map<uint32_t, Region*> regions;  // by key
  std::set<Context*> contexts;
  std::set<Receives*> receives;
  std::deque<Late> late;
  uint32_t next_pair = 100;  // never reused, as for a card with many
  uint32_t next_key = 0x1000;
  uint32_t next_turn = 0;
  uint64_t executed = 0;
  uint64_t until_cut = 0;  // 0: no cut is planned
  Fate fate = Fate::nothing;
  bool is_cut = false;
  bool is_held = false;
  bool port_is_up = true;
  bool is_lost = false;
  ibv_device device{};
  std::thread thread;
};

// Never destroyed: its thread goes on until the process ends.
Card& card();

// An eventfd that is readable once for each event.
int make_events();
void raise(int events);
bool take(int events);

// Call the rest with the mutex held.
void complete(Pair& pair, const Request& request, ibv_wc_status status);
void fail(Pair& pair);  // moves it to the error state
// True if the key stands for this memory in this domain, with these rights (IBV_ACCESS_...).
bool covers(uint32_t key, const ibv_pd* domain, uint64_t address, uint64_t bytes, int rights);
// Executes one request of the next queue pair that has any. False: there is none.
bool step();

}  // namespace gpupool::testing::played
