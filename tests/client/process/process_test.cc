// Tests how a process connects: from GPUPOOL to sessions, devices and primary contexts, each time in a child
// process, because a process connects once.
#include "client/process/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include "protocol/driver/exports.h"
#include "tests/client/child.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/fake_worker.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using Catch::Matchers::ContainsSubstring;
using wire::Command;

extern "C" size_t gpupool_client_servers(char* text, size_t size);
extern "C" int gpupool_client_state();

namespace {

const Environment kPlain{{"GPUPOOL_TRANSPORT", "tcp"},
                         {"GPUPOOL_SHM", "0"},
                         {"GPUPOOL_LOG", ""},
                         {"GPUPOOL_CONNECT_TIMEOUT_MS", "30000"}};

// Calls `body` with a worker that `prepare` has changed and that GPUPOOL names.
ChildResult with_worker(const std::function<void(FakeWorker&)>& prepare,
                        const std::function<std::string(FakeWorker&)>& body, Environment environment = {}) {
  environment.insert(kPlain.begin(), kPlain.end());
  return in_child(environment, [&] {
    FakeWorker& worker = *new FakeWorker;
    prepare(worker);
    ::setenv("GPUPOOL", worker.url().c_str(), 1);
    return body(worker);
  });
}

std::string name_of(CUresult result) {
  return result == CUDA_SUCCESS                 ? "success"
         : result == CUDA_ERROR_NO_DEVICE       ? "no device"
         : result == CUDA_ERROR_NOT_INITIALIZED ? "not initialized"
                                                : std::to_string(result);
}

void two_devices(FakeWorker& worker) {
  worker.offer.devices = {fake_device_description("first"), fake_device_description("second")};
  worker.offer.devices[1].uuid = std::string(16, '\x11');
}

}  // namespace

TEST_CASE("process: connects once and gives each device a primary context that is not active") {
  const auto got = with_worker(two_devices, [](FakeWorker& worker) {
    std::string text = name_of(ready());
    for (int i = 0; i < 2; ++i) text += ", " + name_of(initialise());
    text += ", " + name_of(ready());
    text += ", hellos " + std::to_string(worker.hellos().size());
    for (const auto& device : devices()) {
      text +=
          ", " + device->name + (device->primary->active ? " active" : "") +
          (device->primary->primary ? " primary" : "") +
          (handles().find(Kind::context, device->primary->handle) == device->primary ? " with handle" : "");
    }
    text += std::string(", ") + (find_device(2) || find_device(-1) ? "too many" : "two");
    return text;
  });
  CHECK(
      got.result ==
      "not initialized, success, success, success, hellos 1, first primary with handle, second primary with "
      "handle, two");
}

TEST_CASE("process: CUDA_VISIBLE_DEVICES chooses devices") {
  const auto got = with_worker(two_devices,
                               [](FakeWorker&) {
                                 const std::string text = name_of(initialise());
                                 return text + ", " + std::to_string(devices().size()) + " " +
                                        devices()[0]->name + " " +
                                        std::to_string(devices()[0]->server_ordinal);
                               },
                               {{"CUDA_VISIBLE_DEVICES", "1"}});
  CHECK(got.result == "success, 1 second 1");
}

TEST_CASE("process: closes the sessions of servers without visible devices") {
  const auto got =
      with_worker(two_devices,
                  [](FakeWorker& worker) {
                    FakeWorker& other = *new FakeWorker;
                    ::setenv("GPUPOOL", (other.url() + "," + worker.url()).c_str(), 1);
                    std::string text = name_of(initialise());
                    other.await_closed();
                    return text + ", " + std::to_string(sessions().size()) + " " +
                           (sessions()[0]->server() == worker.url() ? "the right one" : "the wrong one");
                  },
                  {{"CUDA_VISIBLE_DEVICES", "2,1"}});
  CHECK(got.result == "success, 1 the right one");
}

TEST_CASE("process: no visible device is no device") {
  const auto got = with_worker(two_devices,
                               [](FakeWorker&) {
                                 const std::string text = name_of(initialise());
                                 return text + ", " + name_of(ready());
                               },
                               {{"CUDA_VISIBLE_DEVICES", "-1"}});
  CHECK(got.result == "no device, not initialized");
}

TEST_CASE("process: each server learns which addresses the others use") {
  const auto got = with_worker(two_devices, [](FakeWorker& worker) {
    FakeWorker& other = *new FakeWorker;
    ::setenv("GPUPOOL", (worker.url() + "," + other.url()).c_str(), 1);
    std::string text = name_of(initialise());
    const auto told = [](const FakeWorker& one, const FakeWorker& about) {
      const auto range = one.await_command(Command::avoid_addresses).as<wire::AddressRange>();
      return range.base == about.offer.addresses.base && range.size == about.offer.addresses.size;
    };
    text += told(worker, other) && told(other, worker) ? ", told" : ", not told";
    Session& first = *sessions()[0];
    Session& second = *sessions()[1];
    const uint64_t of_second = second.addresses().base();
    text += session_of(of_second, &first) == &second ? ", found" : ", not found";
    text += session_of(1, &first) ? ", too much" : "";
    return text + ", devices " + std::to_string(devices().size()) + ", index " +
           std::to_string(second.index());
  });
  CHECK(got.result == "success, told, found, devices 3, index 1");
}

TEST_CASE("process: says once why it cannot connect, and does not try again") {
  SECTION("without a server") {
    const auto got = in_child(kPlain, [] {
      ::unsetenv("GPUPOOL");
      return name_of(initialise()) + ", " + name_of(initialise());
    });
    CHECK(got.result == "no device, no device");
    CHECK_THAT(got.errors, ContainsSubstring("no server configured"));
    CHECK(got.errors.find("no server configured") == got.errors.rfind("no server configured"));
  }
  SECTION("with an invalid address") {
    const auto got = in_child(kPlain, [] {
      ::setenv("GPUPOOL", "http://127.0.0.1:1", 1);
      return name_of(initialise());
    });
    CHECK(got.result == "no device");
    CHECK_THAT(got.errors, ContainsSubstring("GPUPOOL=http://127.0.0.1:1: "));
  }
  SECTION("with too many servers") {
    const auto got = in_child(kPlain, [] {
      std::string all = "tcp://127.0.0.1:1";
      for (unsigned i = 0; i < kMaxServers; ++i) all += ",tcp://127.0.0.1:" + std::to_string(i + 2);
      ::setenv("GPUPOOL", all.c_str(), 1);
      return name_of(initialise());
    });
    CHECK(got.result == "no device");
    CHECK_THAT(got.errors, ContainsSubstring("lists 65 servers; at most 64"));
  }
  SECTION("with a server that refuses") {
    const auto got = with_worker(
        [](FakeWorker& worker) {
          worker.offer.status = hello::Status::busy;
          worker.offer.reason = "all GPUs are taken";
        },
        [](FakeWorker& worker) {
          std::string text = name_of(initialise());
          text += ", " + name_of(initialise());
          return text + ", hellos " + std::to_string(worker.hellos().size());
        });
    CHECK(got.result == "no device, no device, hellos 1");
    CHECK_THAT(got.errors, ContainsSubstring("refused: all GPUs are taken"));
  }
  SECTION("with one of two servers") {
    const auto got = with_worker([](FakeWorker& worker) { worker.close_after_hello = true; },
                                 [](FakeWorker& worker) {
                                   FakeWorker& good = *new FakeWorker;
                                   worker.raw_answer = "x";
                                   ::setenv("GPUPOOL", (good.url() + "," + worker.url()).c_str(), 1);
                                   std::string text = name_of(initialise());
                                   good.await_closed();
                                   return text + ", sessions " + std::to_string(sessions().size());
                                 });
    CHECK(got.result == "no device, sessions 0");
    CHECK_THAT(got.errors, ContainsSubstring("cannot use the server tcp://127.0.0.1:"));
  }
}

TEST_CASE("process: a child of a connected process is not initialised") {
  const auto got = with_worker(two_devices, [](FakeWorker&) {
    std::string text = name_of(initialise());
    int pipe[2];
    if (::pipe(pipe) != 0) return std::string("no pipe");
    const pid_t child = ::fork();
    if (child == 0) {
      std::string seen = name_of(ready());
      seen += ", " + name_of(initialise());
      [[maybe_unused]] const ssize_t written = ::write(pipe[1], seen.data(), seen.size());
      ::_exit(0);
    }
    char seen[100];
    const ssize_t length = ::read(pipe[0], seen, sizeof seen);
    int status = 0;
    ::waitpid(child, &status, 0);
    return text + ", child: " + std::string(seen, length > 0 ? static_cast<size_t>(length) : 0) +
           ", parent: " + name_of(ready()) + (sessions()[0]->failed() ? " failed" : "");
  });
  CHECK(got.result == "success, child: not initialized, not initialized, parent: success");
}

TEST_CASE("process: tells the NVML library its servers") {
  const auto got = with_worker(two_devices, [](FakeWorker& worker) {
    char text[256] = "unset";
    std::string said = std::to_string(gpupool_client_servers(text, sizeof text));
    said += std::string(" ") + text;
    (void)initialise();
    const size_t length = gpupool_client_servers(text, sizeof text);
    said += length == worker.url().size() && text == worker.url() ? ", all" : std::string(", ") + text;
    char short_text[4] = "-";
    said += gpupool_client_servers(short_text, sizeof short_text) == length ? ", length" : ", nothing";
    return said + " " + short_text;
  });
  CHECK(got.result == "0 unset, all, length -");
}

TEST_CASE("process: tells whether cuInit has connected, failed or cannot work in a forked child") {
  const auto connected = with_worker(two_devices, [](FakeWorker&) {
    std::string said = std::to_string(gpupool_client_state());
    (void)initialise();
    said += std::to_string(gpupool_client_state());
    const pid_t child = ::fork();
    if (child == 0) ::_exit(gpupool_client_state());
    int status = 0;
    ::waitpid(child, &status, 0);
    return said + std::to_string(WEXITSTATUS(status)) + std::to_string(gpupool_client_state());
  });
  CHECK(connected.result == "0131");
  const auto failed = in_child(kPlain, [] {
    ::unsetenv("GPUPOOL");
    std::string said = std::to_string(gpupool_client_state());
    (void)initialise();
    return said + std::to_string(gpupool_client_state());
  });
  CHECK(failed.result == "02");
}
