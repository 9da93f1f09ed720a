// A minimal device library, so that poold's own tests need no real device: two devices, no memory, no
// execution. The environment variable FAKE_DEVICE selects how it fails: "init", "none" (no devices), "hang",
// "crash", "novmm", "high", "large" (GPUs of 141 GiB), "gate" (cuInit waits for the lock of the file
// FAKE_DEVICE_GATE) and "flag:FILE" (cuInit fails as long as FILE exists). With "hostile:HOW" it acts as a
// worker that a client has taken over: on SIGUSR1 it misuses its control socket, its log or the admin socket.
// With "cache" it uses the driver's cache on SIGUSR1 as NVIDIA's driver does, with the environment variables'
// values at the time of cuInit, tries to access other tenants' folders, and logs the result.
#include <cuda.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "server/handover/handover.h"

#define FAKE extern "C" __attribute__((visibility("default"))) CUresult

namespace {

std::string mode() {
  const char* value = std::getenv("FAKE_DEVICE");
  return value != nullptr ? value : "";
}
int contexts = 0;

// Returns a socket whose last close() takes a minute (SO_LINGER), because its peer, the test, does not read.
int lingering_connection() {
  const int connected = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(std::getenv("FAKE_DEVICE_PEER"))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(connected, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return -1;
  static const char bytes[64 * 1024] = {};
  while (::send(connected, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  const linger lingers{1, 60};
  return ::setsockopt(connected, SOL_SOCKET, SO_LINGER, &lingers, sizeof lingers) == 0 ? connected : -1;
}

// Sends `count` copies of the descriptor. Returns 0 or errno.
int send_copies(int socket, std::span<const std::byte> bytes, int descriptor, size_t count) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char space[CMSG_SPACE(253 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* const control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(count * sizeof(int));
  for (size_t i = 0; i < count; ++i)
    std::memcpy(CMSG_DATA(control) + i * sizeof(int), &descriptor, sizeof descriptor);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? errno : 0;
}

void send_lingering(const std::string& how) {
  using namespace gpupool::server;
  const ControlHeader header{
      how == "hostile:linger-share" ? ControlKind::share_found : ControlKind::image_deposit, 0};
  std::vector<std::byte> bytes(sizeof header + *control_body_bytes(header.kind));
  std::memcpy(bytes.data(), &header, sizeof header);
  const size_t count = how == "hostile:linger-many" ? 253 : 1;
  const int lingers = how == "hostile:linger-fuse"
                          ? ::open(std::getenv("FAKE_DEVICE_PEER"), O_RDONLY | O_CLOEXEC)
                          : lingering_connection();
  const int error = send_copies(kControlDescriptor, bytes, lingers, count);
  if (error == 0 && how != "hostile:linger-fuse") ::close(lingers);
  ::dprintf(kLogDescriptor, "fake_sent errno=%d\n", error);
}

void speak_to_admin_socket() {
  const int lingers = lingering_connection(), connected = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, std::getenv("FAKE_DEVICE_SOCKET"), sizeof address.sun_path - 1);
  if (::connect(connected, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
  if (send_copies(connected, std::as_bytes(std::span("x", 1)), lingers, 1) == 0) ::close(lingers);
}

// Allocates and touches 1 GiB of host memory, if permitted.
void take_memory() {
  constexpr size_t kBytes = size_t{1} << 30;
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ::dprintf(gpupool::server::kLogDescriptor, "info fake_took_memory whole=%d\n", memory != MAP_FAILED);
}

// Writes a line that imitates poold's own, tries to truncate the log, and writes a line longer than poold
// accepts.
void spoil_log() {
  for (const int log : {STDOUT_FILENO, STDERR_FILENO, gpupool::server::kLogDescriptor}) {
    (void)!::ftruncate(log, 0);
    ::dprintf(log, "2026-01-01T00:00:00.000Z info poold[1] session_started session=%d\n", 900 + log);
  }
  const std::string filler(100'000, 'x');
  ::dprintf(gpupool::server::kLogDescriptor, "%s\ninfo spoilt\n", filler.c_str());
}

// Writes enough to keep poold reading, then writes from memory whose page fault is never resolved
// (userfaultfd), so that the write never ends.
void write_slowly() {
  using gpupool::server::kLogDescriptor;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int faults = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{};
  api.api = UFFD_API;
  uffdio_register wanted{};
  wanted.range = {reinterpret_cast<uintptr_t>(memory), page};
  wanted.mode = UFFDIO_REGISTER_MODE_MISSING;
  const bool slow =
      faults >= 0 && ::ioctl(faults, UFFDIO_API, &api) == 0 && ::ioctl(faults, UFFDIO_REGISTER, &wanted) == 0;
  const std::string lines =
      std::string(slow ? "info fake_writes slowly\n" : "info fake_writes\n") + std::string(60'000, '\n');
  (void)!::write(kLogDescriptor, lines.data(), lines.size());
  ::alarm(60);
  if (slow) (void)!::write(kLogDescriptor, memory, page);
}

char state_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t end = text.rfind(") ");
  return end == text.npos ? '?' : text[end + 2];
}

// Offers an image and waits until poold is stopped. Then sends more messages than poold reads from an exited
// worker, the last one an image deposit, and exits.
void say_last_words() {
  using namespace gpupool::server;
  ::alarm(60);
  (void)send_control<ControlKind::image_offered>(kControlDescriptor, {.bytes = 100});
  for (int unread = 1; unread > 0;) ::ioctl(kControlDescriptor, SIOCOUTQ, &unread);
  ::dprintf(kLogDescriptor, "fake_offered\n");
  while (state_of(::getppid()) != 'T') ::usleep(1000);
  for (int count = 0; count < 120; ++count) (void)send_control<ControlKind::turn>(kControlDescriptor);
  if (!send_control<ControlKind::image_deposit>(kControlDescriptor, {.bytes = 100})) ::abort();
  ::_exit(0);
}

// Reports migrations as no worker may: without a request, twice, or with an invalid state or reason.
void report_migrations(const std::string& how) {
  using namespace gpupool::server;
  const auto report = [](uint64_t number, uint32_t migrated, const std::string& reason = "") {
    (void)send_control<ControlKind::migration_ended>(kControlDescriptor,
                                                     {.number = number, .migrated = migrated}, reason);
  };
  if (how == "unknown") report(1, 0, "no");
  if (how == "unasked") report(0, 0, "no");
  if (how == "state") report(0, 2);
  if (how == "long") report(0, 1, std::string(kMostMigrationText + 1, 'x'));
  if (how == "unprintable") report(0, 1, "\x1b[2J");
  if (how == "twice") report(0, 1), report(0, 1);
}

void speak_to_poold() {
  using namespace gpupool::server;
  const std::string how = mode();
  if (how.starts_with("hostile:linger-")) return send_lingering(how);
  if (how.starts_with("hostile:migration-")) return report_migrations(how.substr(18));
  if (how == "hostile:turns") {
    for (int count = 0; count < 10; ++count) (void)send_control<ControlKind::turn>(kControlDescriptor);
    return;
  }
  if (how == "hostile:last-words") return say_last_words();
  if (how == "hostile:memory") return take_memory();
  if (how == "hostile:admin") return speak_to_admin_socket();
  if (how == "hostile:log") return spoil_log();
  if (how == "hostile:log-slow") return write_slowly();
  if (how == "hostile:log-descriptors") {
    const int error =
        send_copies(kLogDescriptor, std::as_bytes(std::span("info sent\n", 10)), kControlDescriptor, 253);
    ::dprintf(kLogDescriptor, "fake_sent errno=%d\n", error);
    return;
  }
  if (how == "hostile:garbage") {
    ::send(kControlDescriptor, "?", 1, MSG_NOSIGNAL);
    return;
  }
  if (how == "hostile:kind")
    (void)send_packet(kControlDescriptor, static_cast<ControlKind>(12345), {}, "", -1);
  if (how == "hostile:ready") (void)send_control<ControlKind::ready>(kControlDescriptor);
  if (how == "hostile:damaged") {
    packet::Image image;
    image.name.fill(1);
    (void)send_control<ControlKind::image_damaged>(kControlDescriptor, image);
  }
  if (how == "hostile:deposit")
    (void)send_control<ControlKind::image_deposit>(kControlDescriptor, {.bytes = 100});
  if (how == "hostile:dump") (void)send_control<ControlKind::dump>(kControlDescriptor);
  if (how == "hostile:peers") {  // more connections than any client needs
    packet::PeerWanted wanted;
    wanted.target.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
    wanted.target.port = 1;
    for (int more = 0; more < 101; ++more)
      (void)send_control<ControlKind::peer_wanted>(kControlDescriptor, wanted);
  }
}

std::string cache_path, cache_bytes;  // values at the time of cuInit

int entries_of(const std::string& path) {
  DIR* const folder = ::opendir(path.c_str());
  if (folder == nullptr) return -1;
  int count = 0;
  while (const dirent* const entry = ::readdir(folder)) count += entry->d_name[0] != '.';
  ::closedir(folder);
  return count;
}

void use_cache(int) {
  const int before = entries_of(cache_path);
  const std::string folder = cache_path + "/" + std::to_string(::getpid());
  const bool made = ::mkdir(folder.c_str(), 0777) == 0 && ::mkdir((folder + "/a").c_str(), 0777) == 0;
  const int file = ::open((folder + "/a/entry").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const bool wrote = file >= 0 && ::write(file, "x", 1) == 1;
  const bool others = entries_of(cache_path + "/..") >= 0 || ::chmod((cache_path + "/..").c_str(), 0777) == 0;
  ::dprintf(gpupool::server::kLogDescriptor, "fake_cache bytes=%s before=%d made=%d wrote=%d others=%d.\n",
            cache_bytes.c_str(), before, made, wrote, others);
}

}  // namespace

FAKE cuInit(unsigned flags) {
  const std::string how = mode();
  if (how == "init") return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  if (how == "crash") std::abort();
  while (how == "hang") ::pause();
  if (how == "gate") {  // locked by a test
    const int gate = ::open(std::getenv("FAKE_DEVICE_GATE"), O_RDONLY | O_CLOEXEC);
    if (gate < 0 || ::flock(gate, LOCK_SH) != 0) return CUDA_ERROR_SYSTEM_NOT_READY;
    ::close(gate);
  }
  if (how == "cache") {
    const char* const path = std::getenv("CUDA_CACHE_PATH");
    const char* const bytes = std::getenv("CUDA_CACHE_MAXSIZE");
    cache_path = path != nullptr ? path : "/none";
    cache_bytes = bytes != nullptr ? bytes : "none";
    ::signal(SIGUSR1, &use_cache);
  }
  if (how.starts_with("hostile:")) {
    ::signal(SIGUSR1, [](int) {
      const int interrupted = errno;
      speak_to_poold();
      errno = interrupted;
    });
  }
  if (how.starts_with("flag:") && ::access(how.c_str() + 5, F_OK) == 0) return CUDA_ERROR_SYSTEM_NOT_READY;
  return CUDA_SUCCESS;
}
FAKE cuGetErrorName(CUresult error, const char** name) {
  if (error != CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) return CUDA_ERROR_INVALID_VALUE;
  *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
  return CUDA_SUCCESS;
}
FAKE cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetCount(int* count) {
  *count = mode() == "none" ? 0 : 2;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetName(char* name, int length, CUdevice device) {
  std::snprintf(name, static_cast<size_t>(length), "Fake device %d", device);
  return CUDA_SUCCESS;
}
FAKE cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  *bytes = (mode() == "large" ? 141ull : 8ull + static_cast<unsigned>(device)) << 30;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid->bytes, 'a' + device, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (attribute > 140) return CUDA_ERROR_INVALID_VALUE;
  *value = static_cast<int>(attribute) * 10;
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)
    *value = mode() == "novmm" ? 0 : 1;
  return CUDA_SUCCESS;
}
FAKE cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                   CUmemAllocationGranularity_flags) {
  *bytes = 2u << 20;
  return CUDA_SUCCESS;
}
FAKE cuMemAddressReserve(CUdeviceptr* base, size_t size, size_t, CUdeviceptr hint, unsigned long long) {
  if (size > 1ull << 38 && mode() != "large")
    return CUDA_ERROR_OUT_OF_MEMORY;  // the worker must retry with less
  // "high" ignores the first hint and returns a range that ends above the 47-bit user address space.
  *base = mode() == "high" && hint == 0x2000'0000'0000 ? 0x7fc0'0000'1000 : hint;
  return CUDA_SUCCESS;
}
FAKE cuMemAddressFree(CUdeviceptr base, size_t) {
  return base == 0x7fc0'0000'1000 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
FAKE cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ++contexts;
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
FAKE cuDevicePrimaryCtxRelease(CUdevice) {
  return contexts-- > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
FAKE cuCtxSetCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
FAKE cuCtxPushCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
FAKE cuCtxPopCurrent(CUcontext* context) {
  *context = nullptr;
  return CUDA_SUCCESS;
}
FAKE cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -3;
  return CUDA_SUCCESS;
}
FAKE cuMemGetInfo(size_t* free, size_t* total) {
  *free = contexts > 0 ? 5ull << 30 : 0;
  *total = 8ull << 30;
  return CUDA_SUCCESS;
}
