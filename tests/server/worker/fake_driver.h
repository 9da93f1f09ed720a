// A device library in the test's own process: streams that can be held, memory that is plain memory at the
// addresses that the session chooses, modules that hold whatever kernels one asks for. One at a time; counts
// what is alive, so that a test sees what a session leaves behind.
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

#include "protocol/cuda/cuda_header.h"

namespace gpupool::worker::test {

struct FakeStream {
  std::deque<std::function<bool()>> work;  // false: not yet, try again later
  bool held = false;
  int steps = 0;  // that it may take nevertheless
  unsigned flags = 0;
};

struct FakeEvent {
  std::shared_ptr<bool> passed = std::make_shared<bool>(true);  // of the last record
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
  static constexpr uint64_t kMemory = 16 * 1024 * 1024;  // of the device

  FakeDriver();
  ~FakeDriver();
  void* symbol(const char* name) const;

  // The stream made as number `index` (from 0), or the default stream of the current context (-1).
  void hold(int index);
  void let_go(int index);
  void step(int index, int count);  // of a held one, so many more
  // Until `count` calls of cuEventSynchronize are blocked.
  void await_blocked(int count);

  // While a session runs; the members themselves are for tests whose session is over or idle for good.
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

  size_t devices = 1;                     // before the session starts
  bool stream_memory_operations = false;  // likewise
  bool zeroes_memory = true;              // likewise; else memory is full of kDirt
  static constexpr std::byte kDirt{0xdb};
  enum class HostAccess { works, unsupported, faults };
  HostAccess host_access =
      HostAccess::works;       // likewise: of device memory by the CPU; `faults`: granted, but not given
  uint64_t context_bytes = 0;  // of the device, for each context that is created
  uint64_t primary_bytes = 0;  // likewise for the primary context
  enum class TellsUse { nothing, of_process, of_device };
  TellsUse tells_use = TellsUse::nothing;  // before the session starts: without a context
  uint64_t range_base = 0;
  uint64_t range_size = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<CUcontext, std::unique_ptr<FakeStream>> contexts;  // with their default stream
  std::vector<std::unique_ptr<FakeStream>> streams;           // in order of creation; null when destroyed
  std::set<std::pair<CUcontext, CUcontext>> peers;            // cuCtxEnablePeerAccess: who, whose
  std::set<FakeEvent*> events;
  std::set<void*> pinned;
  std::set<void*> registered;
  std::set<CUmodule> modules;
  std::set<void*> graphs;
  std::set<void*> executables;
  std::vector<size_t> graph_launches;         // how many nodes each had
  CUresult next_graph_launch = CUDA_SUCCESS;  // what it returns
  std::set<size_t> refused_updates;       // how many nodes the graphs have that no executable is updated from
  std::vector<size_t> node_dependencies;  // how many each node was added with
  struct GraphEdge {
    CUgraphNode from, to;
    CUgraphEdgeData data;
  };
  std::vector<GraphEdge> graph_edges;  // that were added by themselves
  bool refuses_edge_data = false;
  int host_nodes = 0;                            // that any graph was given
  std::set<void*> arrays;                        // mipmapped ones and their levels too
  std::set<void*> references;                    // texture references, modules' ones too
  std::map<unsigned long long, void*> textures;  // and surfaces; the array, or null
  bool driver_reuses_handles = true;             // of textures and surfaces
  int misused = 0;  // calls that a driver would have crashed in, or read elsewhere
  struct Physical {
    size_t size;
    int file;
    int uses = 1;  // its handle, and mappings
    bool released = false;
  };
  std::map<uint64_t, Physical> physical;  // cuMemCreate
  struct Mapping {
    size_t size;
    uint64_t handle;
    std::map<int, int> access;  // of devices: CUmemAccess_flags
    bool host = false;          // the CPU was given access
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
  uint64_t stuck = 0;                                       // what is mapped there cannot be unmapped
  std::vector<FakeLaunch> launches;
  std::map<std::string, std::string> functions;   // interned names
  std::map<std::string, int> local_bytes;         // of functions: local memory per thread; else little
  CUresult next_attribute = CUDA_SUCCESS;         // what the next question about a function returns
  int attribute_questions = 0;                    // about functions
  CUresult next_kernel_launch = CUDA_SUCCESS;     // what it returns
  std::vector<std::string> images;                // what cuModuleLoadDataEx saw, as text
  std::function<void()> in_kernel;                // runs at each launch
  std::function<void()> in_module_load;           // likewise; may block
  CUresult strikes_at_next_event = CUDA_SUCCESS;  // becomes sticky when an event is made
  CUresult sticky = CUDA_SUCCESS;                 // what every query returns
  int primary = 0;                                // how often retained
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

// What it has of memory, modules and graphs, each in a file of its own; null: not that.
void* fake_memory_symbol(std::string_view name);
void* fake_module_symbol(std::string_view name);
void* fake_graph_symbol(std::string_view name);
void* fake_array_symbol(std::string_view name);

// An entry of their tables.
#define FAKE(name, function) \
  { #name, reinterpret_cast<void*>(static_cast<decltype(&::name)>(&function)) }

// Behind what the stream has to do.
CUresult enqueue(CUstream stream, std::function<bool()> work);
bool is_mapped(uint64_t address,
               size_t size);  // with the mutex held: by one mapping, which the device may read or write
CUcontext current_context();  // of this thread

// The one that exists.
FakeDriver& driver();

}  // namespace gpupool::worker::test
