// A device library in the test's own process: streams that can be held, memory that is plain memory at the
// addresses that the session chooses, and modules that have any kernel one asks for. There is one FakeDriver
// at a time; it counts living objects, so that tests detect what a session leaves behind. The session's
// threads and the test may call it at the same time.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "protocol/driver/cuda_header.h"

namespace gpupool::worker::test {

struct FakeStream {
  std::deque<std::function<bool()>> work;  // returns false if it must be retried later
  bool held = false;
  int steps = 0;  // a held stream may still execute so many
  unsigned flags = 0;
};

struct FakeEvent {
  std::shared_ptr<bool> passed = std::make_shared<bool>(true);  // completion of the last record
};

struct FakeLaunch {
  std::string function;
  std::vector<std::byte> parameters;
  unsigned grid[3];
  bool extended = false;
  unsigned attributes = 0;
};

class FakeDriver {
 public:
  static constexpr uint64_t kGranularity = 64 * 1024;
  static constexpr uint64_t kMemory = 16 * 1024 * 1024;  // bytes of device memory

  FakeDriver();
  ~FakeDriver();
  void* symbol(const char* name) const;

  // Holds or resumes the stream with number `index` in order of creation (from 0), or the current context's
  // default stream (-1).
  void hold(int index);
  void let_go(int index);
  void step(int index, int count);  // lets a held stream execute `count` operations
  // Waits until `count` calls of cuEventSynchronize are blocked.
  void await_blocked(int count);

  // For use while a session runs; the public members are for tests whose session is over or idle for good.
  size_t event_count() {
    return locked([&] { return events.size(); });
  }
  size_t registered_count() {
    return locked([&] { return registered.size(); });
  }
  size_t pinned_count() {
    return locked([&] { return pinned.size(); });
  }
  size_t module_count() {
    return locked([&] { return modules.size(); });
  }
  uint64_t used() {
    return locked([&] { return memory_used; });
  }
  size_t streams_alive() {
    return locked([&] {
      size_t alive = 0;
      for (const auto& stream : streams) alive += stream != nullptr;
      return alive;
    });
  }
  template <class F>
  std::invoke_result_t<F> locked(F&& read) {
    const std::lock_guard lock(mutex);
    return read();
  }

  size_t devices = 1;                     // set before the session starts
  bool stream_memory_operations = false;  // set before the session starts
  bool zeroes_memory = true;              // set before the start; false: new memory is full of kDirt
  static constexpr std::byte kDirt{0xdb};
  enum class HostAccess { works, unsupported, faults };
  HostAccess host_access = HostAccess::works;  // set before the start; `faults`: granted, but access faults
  uint64_t context_bytes = 0;                  // device memory that each created context takes
  uint64_t primary_bytes = 0;                  // the same for the primary context
  std::function<void()> in_new_context;        // called, locked, when a context is made
  enum class TellsUse { nothing, of_process, of_device };
  TellsUse tells_use = TellsUse::nothing;  // set before the start: memory use known without a context
  uint64_t range_base = 0;
  uint64_t range_size = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<CUcontext, std::unique_ptr<FakeStream>> contexts;  // with their default stream
  std::vector<std::unique_ptr<FakeStream>> streams;           // in order of creation; null when destroyed
  std::set<std::pair<CUcontext, CUcontext>> peers;            // cuCtxEnablePeerAccess: current context, peer
  std::set<FakeEvent*> events;
  std::set<void*> pinned;
  std::set<void*> registered;
  std::set<CUmodule> modules;
  std::set<void*> graphs;
  std::set<void*> executables;
  std::vector<size_t> graph_launches;         // number of nodes of each launched graph
  CUresult next_graph_launch = CUDA_SUCCESS;  // result of the next launch
  std::set<size_t> refused_updates;           // node counts of graphs from which updates are refused
  std::vector<size_t> node_dependencies;      // number of dependencies of each added node
  struct GraphEdge {
    CUgraphNode from, to;
    CUgraphEdgeData data;
  };
  std::vector<GraphEdge> graph_edges;  // edges added separately
  bool refuses_edge_data = false;
  int host_nodes = 0;                            // added to any graph
  std::set<void*> arrays;                        // also mipmapped arrays and their levels
  std::set<void*> references;                    // texture references, also those of modules
  std::map<unsigned long long, void*> textures;  // also surfaces; the array or null
  bool driver_reuses_handles = true;             // of textures and surfaces
  int misused = 0;  // calls in which a driver would have crashed or read other memory
  struct Physical {
    size_t size;
    int file;
    int uses = 1;  // its handle and its mappings
    bool released = false;
  };
  std::map<uint64_t, Physical> physical;  // cuMemCreate
  struct Mapping {
    size_t size;
    uint64_t handle;
    std::map<int, int> access;  // by device: CUmemAccess_flags
    bool host = false;          // the CPU has access
  };
  std::map<uint64_t, Mapping> mapped;  // by address
  struct Multicast {
    size_t size;
    std::set<int> devices;
    struct Bound {
      uint64_t memory;
      size_t offset, size;
    };
    std::vector<Bound> bound;
  };
  std::map<uint64_t, Multicast> multicasts;                 // cuMulticastCreate
  std::vector<std::pair<uint64_t, uint64_t>> decompressed;  // source and target of each operation
  uint64_t stuck = 0;                                       // address whose mapping cannot be unmapped
  std::vector<FakeLaunch> launches;
  std::map<std::string, std::string> functions;   // interned names
  std::map<std::string, int> local_bytes;         // local memory per thread by function; default: little
  CUresult next_attribute = CUDA_SUCCESS;         // result of the next attribute query of a function
  int attribute_questions = 0;                    // attribute queries of functions
  CUresult next_kernel_launch = CUDA_SUCCESS;     // result of the next launch
  std::vector<std::string> images;                // images passed to cuModuleLoadDataEx, as text
  std::function<void()> in_kernel;                // runs at each launch
  std::function<void()> in_module_load;           // runs at each load; may block
  CUresult strikes_at_next_event = CUDA_SUCCESS;  // becomes sticky when an event is created
  CUresult sticky = CUDA_SUCCESS;                 // result of every query
  int primary = 0;                                // retain count
  std::vector<unsigned> context_flags;            // of each created context, and of primary ones
  int blocked = 0;
  int synchronized_events = 0;
  uint64_t memory_used = 0;
  std::map<int, size_t> limits{{CU_LIMIT_STACK_SIZE, 1024},
                               {CU_LIMIT_PRINTF_FIFO_SIZE, 1u << 20},
                               {CU_LIMIT_MALLOC_HEAP_SIZE, 8u << 20}};
  uint64_t next_handle = 1;
  std::vector<std::byte> global = std::vector<std::byte>(64);

  void pump_locked();
  FakeStream* stream_locked(CUstream stream);
};

// Functions for memory, modules, graphs and arrays, each in its own file. Return null for other names.
void* fake_memory_symbol(std::string_view name);
void* fake_module_symbol(std::string_view name);
void* fake_graph_symbol(std::string_view name);
void* fake_array_symbol(std::string_view name);

// An entry of the tables of functions.
#define FAKE(name, function) \
  { #name, reinterpret_cast<void*>(static_cast<decltype(&::name)>(&function)) }

// Queues work in the stream; it returns false if it must be retried later.
CUresult enqueue(CUstream stream, std::function<bool()> work);
bool is_mapped(uint64_t address,
               size_t size);  // with the mutex held: by one mapping with device read-write access
CUcontext current_context();  // of this thread

// The existing FakeDriver.
FakeDriver& driver();

}  // namespace gpupool::worker::test
