#include "server/softgpu/memory/shared_device.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/server/softgpu/memory/child.h"
#include "tests/server/softgpu/memory/instance.h"

using namespace gpupool::softgpu;

TEST_CASE("memory is charged and limited to the total and returned") {
  Instance instance;
  auto device = SharedDevice::open(0, 4 * kGranule);
  REQUIRE(device);
  CHECK(device->total_bytes() == 4 * kGranule);
  auto a = device->allocate(3 * kGranule);
  REQUIRE(a);
  CHECK(a->size() == 3 * kGranule);
  CHECK(device->free_bytes() == kGranule);
  CHECK_FALSE(device->allocate(kGranule + 512));
  CHECK_FALSE(device->allocate(0));
  CHECK_FALSE(device->allocate(UINT64_MAX));
  auto b = device->allocate(512);
  CHECK(device->free_bytes() == kGranule - 512);
  a.reset();
  b.reset();
  CHECK(device->free_bytes() == 4 * kGranule);
}

TEST_CASE("a process has one object per device and removes the file with it") {
  Instance instance;
  CHECK_FALSE(instance.file_exists());
  auto first = SharedDevice::open(0, kGranule);
  CHECK(SharedDevice::open(0, 5 * kGranule) == first);
  CHECK(SharedDevice::open(1, 5 * kGranule) != first);
  CHECK(instance.file_exists());
  auto memory = first->allocate(512);
  first.reset();
  CHECK(instance.file_exists());  // the memory keeps the device open
  memory.reset();
  CHECK_FALSE(instance.file_exists());
  CHECK_FALSE(instance.file_exists(1));
  CHECK(SharedDevice::open(0, 7 * kGranule)->total_bytes() == 7 * kGranule);
}

TEST_CASE("opening and closing from many threads") {
  Instance instance;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        auto device = SharedDevice::open(0, 8 * kGranule);
        if (!device || !device->allocate(kGranule)) ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failures == 0);
  CHECK_FALSE(instance.file_exists());
}

TEST_CASE("processes share one device's memory and a killed process returns its share") {
  Instance instance;
  auto hold = [](Child::Side& side) {
    auto device = SharedDevice::open(0, 100 * kGranule);  // opened second: its size is ignored
    auto memory = device->allocate(3 * kGranule);
    side.tell(memory && device->total_bytes() == 4 * kGranule ? 'y' : 'n');
    side.hear();
    return 0;
  };
  auto device = SharedDevice::open(0, 4 * kGranule);
  Child child(hold);
  REQUIRE(child.hear() == 'y');
  CHECK(device->free_bytes() == kGranule);
  CHECK_FALSE(device->allocate(2 * kGranule));

  SECTION("it leaves by itself") {
    child.tell('.');
    CHECK(child.wait() == 0);
  }
  SECTION("it is killed") {
    child.kill_now();
  }
  CHECK(device->allocate(4 * kGranule));
  CHECK(device->free_bytes() == 4 * kGranule);
  device.reset();
  CHECK_FALSE(instance.file_exists());
}

TEST_CASE("after every process was killed the next one starts clean") {
  Instance instance;
  {
    Child child([](Child::Side& side) {
      auto device = SharedDevice::open(0, 4 * kGranule);
      auto memory = device->allocate(4 * kGranule);
      device->turns().acquire();
      side.tell('y');
      side.hear();
      return 0;
    });
    REQUIRE(child.hear() == 'y');
    child.kill_now();
  }
  // The file still exists, unless a process of another test has opened a device and removed it.
  auto device = SharedDevice::open(0, 2 * kGranule);
  REQUIRE(device);
  CHECK(device->total_bytes() == 2 * kGranule);
  CHECK(device->free_bytes() == 2 * kGranule);
  device->turns().acquire();
  device->turns().release();
  device.reset();
  CHECK_FALSE(instance.file_exists());
}

TEST_CASE("a process that ends without cleanup removes the file") {
  Instance instance;
  auto end = [](Child::Side& side) {
    static auto* device = new std::shared_ptr<SharedDevice>(SharedDevice::open(0, 4 * kGranule));
    static auto* memory = new std::shared_ptr<Memory>((*device)->allocate(kGranule));
    if (!*memory) return 1;
    side.tell('y');
    side.hear();
    std::exit(0);
    return 1;
  };
  SECTION("alone") {
    Child child(end);
    REQUIRE(child.hear() == 'y');
    CHECK(instance.file_exists());
    child.tell('.');
    CHECK(child.wait() == 0);
    CHECK_FALSE(instance.file_exists());
  }
  SECTION("together with others") {
    for (int round = 0; round < 10; ++round) {
      Child a(end), b(end), c(end);
      REQUIRE(a.hear() == 'y');
      REQUIRE(b.hear() == 'y');
      REQUIRE(c.hear() == 'y');
      a.tell('.');
      b.tell('.');
      c.tell('.');
      CHECK(a.wait() + b.wait() + c.wait() == 0);
      REQUIRE_FALSE(instance.file_exists());
    }
  }
}

TEST_CASE("files of killed processes are removed by the next process that opens any device") {
  Instance other;
  const std::string abandoned = other.path(0);
  {
    Child child([](Child::Side& side) {
      auto device = SharedDevice::open(0, kGranule);
      side.tell('y');
      side.hear();
      return 0;
    });
    REQUIRE(child.hear() == 'y');
    // A file in use is not removed.
    Child opener([](Child::Side&) {
      setenv("SOFTGPU_INSTANCE", "another", 1);
      return SharedDevice::open(0, kGranule) ? 0 : 1;
    });
    CHECK(opener.wait() == 0);
    CHECK(other.file_exists());
    child.kill_now();
  }
  Child opener([](Child::Side&) {
    setenv("SOFTGPU_INSTANCE", "another", 1);
    return SharedDevice::open(0, kGranule) ? 0 : 1;
  });
  CHECK(opener.wait() == 0);
  CHECK_FALSE(other.file_exists());
}

TEST_CASE("exactly the available memory is granted to processes that race for the last bytes") {
  Instance instance;
  auto device = SharedDevice::open(0, 10 * kGranule);
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 6; ++i) {
    children.push_back(std::make_unique<Child>([](Child::Side& side) {
      auto device = SharedDevice::open(0, kGranule);
      side.tell('r');
      side.hear();
      auto memory = device->allocate(6 * kGranule);
      side.tell(memory ? 'y' : 'n');
      side.hear();
      return 0;
    }));
  }
  for (auto& child : children) REQUIRE(child->hear() == 'r');
  for (auto& child : children) child->tell('g');
  int winners = 0;
  for (auto& child : children) winners += child->hear() == 'y';
  CHECK(winners == 1);
  CHECK(device->free_bytes() == 4 * kGranule);
}

TEST_CASE("a forked child opens the device for itself without affecting its parent") {
  Instance instance;
  auto device = SharedDevice::open(0, 4 * kGranule);
  auto memory = device->allocate(kGranule);
  Child child([&](Child::Side& side) {
    auto own = SharedDevice::open(0, kGranule);
    if (!own || own == device || own->free_bytes() != 3 * kGranule) return 1;
    auto own_memory = own->allocate(kGranule);
    memory.reset();  // the child must not release inherited memory
    device.reset();
    return own->free_bytes() == 2 * kGranule ? 0 : 2;
  });
  CHECK(child.wait() == 0);
  CHECK(device->free_bytes() == 3 * kGranule);
  CHECK(instance.file_exists());
}

TEST_CASE("rejects files that are not this user's device state") {
  Instance instance;
  std::string error;
  auto write_file = [&](const std::string& content, mode_t mode) {
    const int fd = open(instance.path(0).c_str(), O_CREAT | O_RDWR | O_TRUNC, 0600);
    REQUIRE(write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    fchmod(fd, mode);
    close(fd);
  };
  SECTION("wrong size") {
    write_file("hello", 0600);
    CHECK_FALSE(SharedDevice::open(0, kGranule, &error));
    CHECK(error.find(instance.path(0)) != std::string::npos);
    CHECK(error.find("wrong size") != std::string::npos);
    CHECK(instance.file_exists());
  }
  SECTION("wrong content") {
    struct stat info;
    SharedDevice::open(1, kGranule);
    auto other = SharedDevice::open(1, kGranule);
    REQUIRE(stat(instance.path(1).c_str(), &info) == 0);
    write_file(std::string(static_cast<size_t>(info.st_size), 'x'), 0600);
    CHECK_FALSE(SharedDevice::open(0, kGranule, &error));
    CHECK(error.find("not the state") != std::string::npos);
  }
  SECTION("writable by others") {
    write_file("", 0666);
    CHECK_FALSE(SharedDevice::open(0, kGranule, &error));
    CHECK(error.find("not a private file") != std::string::npos);
  }
  SECTION("a link") {
    REQUIRE(symlink("/dev/null", instance.path(0).c_str()) == 0);
    CHECK_FALSE(SharedDevice::open(0, kGranule, &error));
    CHECK(error.find("cannot open") != std::string::npos);
  }
  SECTION("a half-made file of a process that died is taken over") {
    write_file("", 0600);
    CHECK(SharedDevice::open(0, kGranule, &error));
  }
  SECTION("a bad instance name") {
    setenv("SOFTGPU_INSTANCE", "../../etc/x", 1);
    CHECK_FALSE(SharedDevice::open(0, kGranule, &error));
    CHECK(error.find("SOFTGPU_INSTANCE") != std::string::npos);
  }
}
