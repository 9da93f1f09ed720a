// Tests poold's image cache: its size limit, its eviction order, and images of hostile workers that it must
// reject.
#include "server/poold/workers/image_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "server/handover/sealed_file.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

constexpr uint64_t kKiB = 1024;

wire::ImageDigest name(uint8_t number) {
  wire::ImageDigest digest{};
  digest[0] = number;
  return digest;
}

int file_of(uint64_t size) {
  const std::vector<std::byte> bytes(size, std::byte{'i'});
  const auto file = make_image_file(size);
  REQUIRE(file);
  REQUIRE(fill_image_file(*file, bytes));
  return *file;
}

bool is_open(int descriptor) {
  return ::fcntl(descriptor, F_GETFD) >= 0;
}

}  // namespace

TEST_CASE("an image is found by its name and size, as the file that was deposited") {
  ImageCache cache(1024 * kKiB);
  CHECK(cache.find(name(1), 5000, 1) == -1);
  const int file = file_of(5000);
  REQUIRE(cache.add(name(1), 5000, file, 1));
  CHECK(cache.find(name(1), 5000, 2) == file);
  CHECK(cache.find(name(1), 5001, 2) == -1);
  CHECK(cache.find(name(2), 5000, 2) == -1);
}

TEST_CASE("the least recently used image is evicted and the size limit holds") {
  ImageCache cache(100 * kKiB);
  for (uint8_t i = 0; i < 3; ++i) REQUIRE(cache.add(name(i), 24 * kKiB, file_of(24 * kKiB), 1));
  CHECK(cache.count() == 3);
  const int gone = cache.find(name(1), 24 * kKiB, 1);
  CHECK(cache.find(name(0), 24 * kKiB, 1) >= 0);
  CHECK(cache.find(name(2), 24 * kKiB, 1) >= 0);
  REQUIRE(cache.add(name(3), 24 * kKiB, file_of(24 * kKiB), 1));
  CHECK(cache.find(name(1), 24 * kKiB, 1) == -1);
  CHECK(cache.find(name(0), 24 * kKiB, 1) >= 0);
  CHECK_FALSE(is_open(gone));
  CHECK(cache.bytes() <= 100 * kKiB);
  REQUIRE(cache.add(name(4), cache.largest_image(), file_of(cache.largest_image()), 1));
  CHECK(cache.count() == 1);
  CHECK(cache.bytes() <= 100 * kKiB);
}

TEST_CASE("the number of images is bounded too") {
  ImageCache cache(1024 * kKiB, 2);
  for (uint8_t i = 0; i < 3; ++i) REQUIRE(cache.add(name(i), 10, file_of(10), 1));
  CHECK(cache.count() == 2);
  CHECK(cache.find(name(0), 10, 1) == -1);
}

TEST_CASE(
    "a second image of the same name does not replace the first and is kept beside it if its size differs") {
  ImageCache cache(1024 * kKiB);
  const int first = file_of(10);
  REQUIRE(cache.add(name(1), 10, first, 1));
  const int second = file_of(10);
  REQUIRE(cache.add(name(1), 10, second, 2));
  CHECK_FALSE(is_open(second));
  CHECK(cache.find(name(1), 10, 3) == first);
  REQUIRE(cache.add(name(1), 11, file_of(11), 2));
  CHECK(cache.find(name(1), 10, 3) == first);
}

TEST_CASE("an image is requested if it fits the cache and is not cached") {
  ImageCache cache(100 * kKiB);
  CHECK(cache.wants(name(1), 10));
  CHECK(cache.wants(name(1), cache.largest_image()));
  CHECK_FALSE(cache.wants(name(1), cache.largest_image() + 1));
  CHECK_FALSE(cache.wants(name(1), 0));
  REQUIRE(cache.add(name(1), 10, file_of(10), 1));
  CHECK_FALSE(cache.wants(name(1), 10));
  CHECK(cache.wants(name(1), 11));
  CHECK_FALSE(ImageCache(0).wants(name(1), 10));
}

TEST_CASE("a damaged image is removed") {
  ImageCache cache(1024 * kKiB);
  REQUIRE(cache.add(name(1), 10, file_of(10), 1));
  cache.drop_damaged(name(1), 11, 2);
  CHECK(cache.count() == 1);
  cache.drop_damaged(name(1), 10, 2);
  CHECK(cache.count() == 0);
  CHECK(cache.bytes() == 0);
}

TEST_CASE("a file that is not a sealed memory file of the offered size is refused and closed") {
  ImageCache cache(1024 * kKiB);
  const auto refused = [&](uint64_t size, int descriptor) {
    REQUIRE(descriptor >= 0);
    CHECK_FALSE(cache.add(name(1), size, descriptor, 1));
    CHECK_FALSE(is_open(descriptor));
    CHECK(cache.count() == 0);
  };
  refused(11, file_of(10));
  refused(9, file_of(10));
  refused(0, file_of(10));
  refused(~uint64_t{0}, file_of(10));
  refused(cache.largest_image() + 1, file_of(10));
  refused(10, ::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  refused(10, ::open("/", O_RDONLY | O_CLOEXEC));
  const int open = ::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(open, 11) == 0);
  refused(10, open);
  const int half = ::memfd_create("half", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(half, 11) == 0);
  REQUIRE(::fcntl(half, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  refused(10, half);
}

TEST_CASE("a sealed file cannot be changed through any descriptor") {
  const int file = file_of(10);
  CHECK(::pwrite(file, "x", 1, 0) < 0);
  CHECK(::ftruncate(file, 5) < 0);
  CHECK(::mmap(nullptr, 11, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED);
  ::close(file);
}

TEST_CASE("a cache of size zero keeps nothing") {
  ImageCache cache(0);
  CHECK(cache.largest_image() == 0);
  CHECK_FALSE(cache.add(name(1), 10, file_of(10), 1));
  CHECK(cache.find(name(1), 10, 1) == -1);
}
