// Address ranges, mappings and allocations: results and costs of each call.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "probe.h"

using namespace probe;

namespace {

std::string hex(unsigned long long value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", value);
  return text;
}

std::string sized(size_t bytes) {
  return bytes >= kTiB   ? std::to_string(bytes / kTiB) + " TiB"
         : bytes >= kGiB ? std::to_string(bytes / kGiB) + " GiB"
                         : std::to_string(bytes / kMiB) + " MiB";
}

// Reserves large ranges at addresses that a client could agree on with its server.
void reserve_ranges() {
  for (const size_t bytes : {kTiB, 16 * kTiB}) {
    for (const unsigned long long hint :
         {0ull, 0x100000000000ull, 0x200000000000ull, 0x300000000000ull, 0x600000000000ull}) {
      const std::string name = sized(bytes) + (hint ? " at " + hex(hint) : " anywhere");
      step("reserve " + name);
      CUdeviceptr address = 0;
      CUresult result = CUDA_SUCCESS;
      const double took = time_of([&] { result = cuMemAddressReserve(&address, bytes, 0, hint, 0); });
      Object seen;
      seen.add("result", name_of(result)).add("us", took);
      if (result == CUDA_SUCCESS) {
        seen.add("address", hex(address))
            .add("as_wished", !hint || address == hint)
            .add("below_2_47", address + bytes <= 1ull << 47);
        seen.add("free_us", time_of([&] { CHECK(cuMemAddressFree(address, bytes)); }));
      }
      see(name, seen);
    }
  }
}

CUmemAllocationProp properties(bool exportable) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  if (exportable) wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return wanted;
}

CUmemAccessDesc access_of(CUmemLocationType type) {
  return {{type, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

struct MapTimes {
  std::vector<double> create, map, access, unmap, release, share, open;
};

void map_once(const CUmemAllocationProp& wanted, CUdeviceptr address, size_t bytes, MapTimes& times) {
  CUmemGenericAllocationHandle memory{}, opened{};
  const CUmemAccessDesc access = access_of(CU_MEM_LOCATION_TYPE_DEVICE);
  times.create.push_back(time_of([&] { CHECK(cuMemCreate(&memory, bytes, &wanted, 0)); }));
  times.map.push_back(time_of([&] { CHECK(cuMemMap(address, bytes, 0, memory, 0)); }));
  times.access.push_back(time_of([&] { CHECK(cuMemSetAccess(address, bytes, &access, 1)); }));
  if (wanted.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    int file = -1;
    times.share.push_back(time_of([&] {
      CHECK(cuMemExportToShareableHandle(&file, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    }));
    times.open.push_back(time_of([&] {
      CHECK(cuMemImportFromShareableHandle(&opened, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    }));
    CHECK(cuMemRelease(opened));
    ::close(file);
  }
  CHECK(cuMemsetD8(address + bytes - 1, 1, 1));
  CHECK(cuCtxSynchronize());
  times.unmap.push_back(time_of([&] { CHECK(cuMemUnmap(address, bytes)); }));
  times.release.push_back(time_of([&] { CHECK(cuMemRelease(memory)); }));
}

void map_sizes(bool exportable) {
  const Device device;
  const CUmemAllocationProp wanted = properties(exportable);
  for (const size_t bytes : {2 * kMiB, 20 * kMiB, kGiB, 64 * kGiB}) {
    step("map " + sized(bytes));
    if (bytes > device.free() / 10 * 9) {
      see(sized(bytes), "left out: the device has not so much free memory");
      continue;
    }
    CUdeviceptr address = 0;
    CHECK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    MapTimes times;
    for (int i = bytes > kGiB ? 2 : bytes > 20 * kMiB ? 5 : 20; i > 0; --i)
      map_once(wanted, address, bytes, times);
    CHECK(cuMemAddressFree(address, bytes));
    Object seen;
    seen.add("create_us", median(times.create))
        .add("first_create_us", times.create.front())
        .add("map_us", median(times.map));
    seen.add("access_us", median(times.access))
        .add("unmap_us", median(times.unmap))
        .add("release_us", median(times.release));
    if (exportable) seen.add("export_us", median(times.share)).add("import_us", median(times.open));
    see(sized(bytes), seen);
  }
}

// Reads one page in the kernel, where an inaccessible address gives EFAULT instead of a signal.
std::string read_by_kernel(CUdeviceptr address) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return "no pipe";
  const ssize_t written = ::write(ends[1], reinterpret_cast<void*>(address), 4096);
  const std::string said = written == 4096 ? "works" : std::strerror(errno);
  ::close(ends[0]);
  ::close(ends[1]);
  return said;
}

double time_allocations(size_t bytes, double* freed, bool ordered, CUstream stream) {
  std::vector<double> taken, given;
  for (int i = 0; i < 20; ++i) {
    CUdeviceptr address = 0;
    taken.push_back(time_of(
        [&] { CHECK(ordered ? cuMemAllocAsync(&address, bytes, stream) : cuMemAlloc(&address, bytes)); }));
    given.push_back(time_of([&] { CHECK(ordered ? cuMemFreeAsync(address, stream) : cuMemFree(address)); }));
    CHECK(cuStreamSynchronize(stream));
  }
  *freed = median(given);
  return median(taken);
}

Probe plain("map_plain", [] { map_sizes(false); });
Probe exportable("map_exportable", [] { map_sizes(true); });

}  // namespace

PROBE(reserve_without_context) {
  CHECK(cuInit(0));
  reserve_ranges();
}

PROBE(reserve_with_context) {
  const Device device;
  reserve_ranges();
}

PROBE(host_access) {
  const Device device;
  see("direct_managed_access_from_host",
      device.attribute(CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST) == 1);
  see("pageable_memory_access", device.attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) == 1);
  see("host_numa_virtual_memory",
      device.attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1);
  CUdeviceptr plain = 0, mapped = 0;
  CHECK(cuMemAlloc(&plain, 2 * kMiB));
  see("cpu_reads_cuMemAlloc", read_by_kernel(plain));
  CUmemGenericAllocationHandle memory{};
  const CUmemAllocationProp wanted = properties(false);
  CHECK(cuMemCreate(&memory, 2 * kMiB, &wanted, 0));
  CHECK(cuMemAddressReserve(&mapped, 2 * kMiB, 0, 0, 0));
  CHECK(cuMemMap(mapped, 2 * kMiB, 0, memory, 0));
  const CUmemAccessDesc both[] = {access_of(CU_MEM_LOCATION_TYPE_DEVICE),
                                  access_of(CU_MEM_LOCATION_TYPE_HOST)};
  step("cuMemSetAccess for the host");
  see("cuMemSetAccess_device_and_host", name_of(cuMemSetAccess(mapped, 2 * kMiB, both, 2)));
  see("cpu_reads_mapping", read_by_kernel(mapped));
  see("cuMemSetAccess_device", name_of(cuMemSetAccess(mapped, 2 * kMiB, both, 1)));
  see("cuMemSetAccess_host", name_of(cuMemSetAccess(mapped, 2 * kMiB, both + 1, 1)));
  see("cpu_reads_mapping_then", read_by_kernel(mapped));
}

PROBE(allocation_cost) {
  const Device device;
  CUstream stream = nullptr;
  CUmemoryPool pool = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuDeviceGetDefaultMemPool(&pool, device.device));
  for (const size_t bytes : {size_t{4096}, 2 * kMiB, 20 * kMiB, 256 * kMiB, kGiB}) {
    const std::string name = bytes < kMiB ? "4 KiB" : sized(bytes);
    step("allocate " + name);
    if (bytes > device.free() / 10 * 9) continue;
    Object seen;
    double freed = 0;
    seen.add("cuMemAlloc_us", time_allocations(bytes, &freed, false, stream)).add("cuMemFree_us", freed);
    for (const cuuint64_t kept : {cuuint64_t{0}, ~cuuint64_t{0}}) {
      cuuint64_t threshold = kept;
      CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
      const std::string suffix = kept ? "_kept_us" : "_us";
      seen.add("cuMemAllocAsync" + suffix, time_allocations(bytes, &freed, true, stream))
          .add("cuMemFreeAsync" + suffix, freed);
    }
    CHECK(cuMemPoolTrimTo(pool, 0));
    see(name, seen);
  }
}

// Tests whether cuCtxDestroy frees memory of a pool, or of the device's default pool, that was allocated in
// the context.
PROBE(pool_after_context) {
  const Device device;
  const size_t bytes = std::min(kGiB, device.free() / 4);
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  for (const bool own : {true, false}) {
    CUcontext context = nullptr;
    CUmemoryPool pool = nullptr;
    CUstream stream = nullptr;
    CUdeviceptr freed = 0, left = 0;
    const auto free = [&] {
      return CHECK(cuCtxSetCurrent(device.context)), static_cast<double>(device.free());
    };
    const double before = free();
    CHECK(cuCtxCreate(&context, nullptr, 0, device.device));
    if (own)
      CHECK(cuMemPoolCreate(&pool, &wanted));
    else
      CHECK(cuDeviceGetDefaultMemPool(&pool, device.device));
    cuuint64_t keep = ~cuuint64_t{0};
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAllocFromPoolAsync(&freed, bytes / 2, pool, stream));
    CHECK(cuMemAllocFromPoolAsync(&left, bytes / 2, pool, stream));
    CHECK(cuMemFreeAsync(freed, stream));
    CHECK(cuStreamSynchronize(stream));
    Object seen;
    seen.add("allocated", before - free());
    step("cuCtxDestroy");
    seen.add("context_destroyed", name_of(cuCtxDestroy(context)));
    seen.add("still_taken", before - free());
    seen.add("trimmed", name_of(cuMemPoolTrimTo(pool, 0))).add("taken_after_trim", before - free());
    seen.add("freed_by_cuMemFree", name_of(cuMemFree(left))).add("taken_after_free", before - free());
    if (own)
      seen.add("pool_destroyed", name_of(cuMemPoolDestroy(pool))).add("taken_after_pool", before - free());
    see(own ? "own_pool" : "default_pool", seen);
  }
}
