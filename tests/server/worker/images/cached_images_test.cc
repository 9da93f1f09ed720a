// Tests a session that takes images from poold's cache. The test acts as an honest or a malicious poold.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

#include "protocol/images/fatbin.h"
#include "protocol/wire/images.h"
#include "server/handover/handover.h"
#include "server/handover/sealed_file.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;
using server::ControlKind;
using server::packet::ImageQuestion;
using wire::Command;

namespace {

constexpr uint64_t kModule = make_handle(Kind::module, 1, 300);
constexpr uint64_t kUpload = make_handle(Kind::upload, 1, 302);
constexpr uint64_t kLargest = 1 << 20;

struct Poold {
  Poold() {
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    control = std::make_unique<worker::Control>(ends[1], nullptr);
  }
  ~Poold() {
    control.reset();
    for (const int end : ends) ::close(end);
  }
  server::ControlMessage receive() {
    const timeval patience{10, 0};
    ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    auto message = server::receive_control(ends[0]);
    REQUIRE(message);
    return *message;
  }
  // Waits for the request for an image and answers it with this file.
  void give(const wire::ImageName& name, int descriptor) {
    const auto wanted = receive();
    REQUIRE(wanted.kind == ControlKind::image_wanted);
    const auto image = wanted.body<ImageQuestion>();
    REQUIRE(image.name == name.digest);
    REQUIRE(image.bytes == name.size);
    if (descriptor >= 0)
      REQUIRE(server::send_control<ControlKind::image_found>(ends[0], image, "", descriptor));
    else
      REQUIRE(server::send_control<ControlKind::image_missing>(ends[0], image));
    if (descriptor >= 0) ::close(descriptor);
  }
  // Waits for the offer of an image and answers with a file for it, or that it is not wanted. The caller owns
  // the returned descriptor.
  int give_space(const wire::ImageName& name, bool wanted) {
    const auto offered = receive();
    REQUIRE(offered.kind == ControlKind::image_offered);
    const auto image = offered.body<ImageQuestion>();
    CHECK(image.name == name.digest);
    CHECK(image.bytes == name.size);
    CHECK(offered.descriptor == -1);
    const auto file = server::make_image_file(name.size);
    REQUIRE(file);
    if (wanted)
      REQUIRE(server::send_control<ControlKind::image_space>(ends[0], image, "", *file));
    else
      REQUIRE(server::send_control<ControlKind::image_unwanted>(ends[0], image));
    return *file;
  }
  bool silent() {
    char byte = 0;
    return ::recv(ends[0], &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
  }
  int ends[2];
  std::unique_ptr<worker::Control> control;
};

std::vector<std::byte> bundle_of(const std::string& comment) {
  const std::string ptx = ".version 7.0\n.target sm_50\n.address_size 64\n//" + comment +
                          "\n.visible .entry kernel()\n{\nret;\n}\n";
  cuda::ImageSpans spans;
  spans.image = std::as_bytes(std::span(ptx.c_str(), ptx.size() + 1));
  cuda::Bytes bytes;
  if (cuda::bundle(spans, bytes) != CUDA_SUCCESS) throw std::runtime_error("no bundle");
  return {bytes.view().begin(), bytes.view().end()};
}

int sealed(const std::vector<std::byte>& bytes) {
  const auto file = server::make_image_file(bytes.size());
  REQUIRE(file);
  REQUIRE(server::fill_image_file(*file, bytes));
  return *file;
}

const std::vector<std::byte> kImage = bundle_of("image");
const wire::ImageName kName = image::name(kImageNonce, kImage);

struct Session {
  Session() { client.retain(); }
  uint64_t load(const wire::ImageName& name) {
    return client.send(Command::load_module, bytes_of(wire::LoadImage{kModule, 0}, name), true);
  }
  uint64_t upload() {
    auto part = bytes_of(wire::UploadPart{kUpload, kImage.size()});
    part.insert(part.end(), kImage.begin(), kImage.end());
    client.send(Command::upload_part, part);
    return client.send(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload}), true);
  }
  // Checks that the reply equals the one for an image that the server does not have.
  void must_miss(uint64_t load) {
    const auto reply = client.reply(load);
    CHECK(reply.header.result == wire::kImageMissing);
    CHECK(reply.header.flags == 0);
    CHECK(reply.body.empty());
    CHECK(client.fake.module_count() == 0);
  }
  Poold poold;
  TestClient client{false, poold.control.get(), kLargest};
};

}  // namespace

TEST_CASE("an image in the cache is loaded without an upload") {
  Session session;
  const uint64_t load = session.load(kName);
  session.poold.give(kName, sealed(kImage));
  CHECK(session.client.result(load) == CUDA_SUCCESS);
  CHECK(session.client.fake.module_count() == 1);
  CHECK(session.client.finish() == 0);
  CHECK(session.poold.silent());
}

TEST_CASE("uploads a missing image and deposits it in poold's file") {
  Session session;
  const uint64_t load = session.load(kName);
  session.poold.give(kName, -1);
  session.must_miss(load);
  const uint64_t upload = session.upload();
  const int file = session.poold.give_space(kName, true);
  CHECK(session.client.result(upload) == CUDA_SUCCESS);
  const auto deposit = session.poold.receive();
  REQUIRE(deposit.kind == ControlKind::image_deposit);
  CHECK(deposit.body<server::packet::Image>().name == kName.digest);
  CHECK(deposit.body<server::packet::Image>().bytes == kImage.size());
  CHECK(deposit.descriptor == -1);
  REQUIRE(server::is_sealed_file(file, kImage.size()));
  std::vector<std::byte> bytes(kImage.size() + 1);
  REQUIRE(::pread(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  CHECK(bytes.back() == std::byte{0});
  bytes.pop_back();
  CHECK(bytes == kImage);
  ::close(file);
}

TEST_CASE("loads an image that poold declines without depositing it") {
  Session session;
  const uint64_t upload = session.upload();
  ::close(session.poold.give_space(kName, false));
  CHECK(session.client.result(upload) == CUDA_SUCCESS);
  CHECK(session.client.finish() == 0);
  CHECK(session.poold.silent());
}

TEST_CASE("reveals nothing to a client that knows an image's name but not its bytes") {
  Session session;
  wire::ImageName guess = kName;
  SECTION("no proof") {
    guess.proof = {};
  }
  SECTION("the name itself") {
    guess.proof = kName.digest;
  }
  SECTION("the proof of another session") {
    image::Nonce other = kImageNonce;
    other[0] = std::byte{9};
    guess.proof = image::proof(other, kImage);
  }
  const uint64_t load = session.load(guess);
  session.poold.give(guess, sealed(kImage));
  session.must_miss(load);
  CHECK(session.client.finish() == 0);
  CHECK(session.poold.silent());  // no report of a damaged image
}

TEST_CASE("bytes that do not match their name are never loaded, and are reported") {
  Session session;
  std::vector<std::byte> poison = kImage;
  int file = -1;
  SECTION("another image of the same size") {
    poison = bundle_of("Image");
    REQUIRE(poison.size() == kImage.size());
    file = sealed(poison);
  }
  SECTION("another size") {
    poison = bundle_of("longer");
    file = sealed(poison);
  }
  SECTION("a file that its depositor can still change") {
    file = ::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(::pwrite(file, kImage.data(), kImage.size(), 0) == static_cast<ssize_t>(kImage.size()));
    REQUIRE(::ftruncate(file, static_cast<off_t>(kImage.size() + 1)) == 0);
  }
  SECTION("no NUL behind it") {
    std::vector<std::byte> longer = kImage;
    longer.push_back(std::byte{1});
    file = ::memfd_create("no NUL", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(::pwrite(file, longer.data(), longer.size(), 0) == static_cast<ssize_t>(longer.size()));
    REQUIRE(::fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  }
  SECTION("no file at all") {
    file = ::dup(0);
  }
  const uint64_t load = session.load(kName);
  session.poold.give(kName, file);
  session.must_miss(load);
  const auto report = session.poold.receive();
  REQUIRE(report.kind == ControlKind::image_damaged);
  CHECK(report.body<server::packet::Image>().name == kName.digest);
  CHECK(report.body<server::packet::Image>().bytes == kName.size);
}

TEST_CASE("continues without poold's answer after a short wait and ignores a late one") {
  Session session;
  const uint64_t first = session.load(kName);
  session.must_miss(first);
  const auto late = session.poold.receive();
  REQUIRE(late.kind == ControlKind::image_wanted);
  const auto answer = late.body<ImageQuestion>();
  const int file = sealed(bundle_of("late!"));
  REQUIRE(server::send_control<ControlKind::image_found>(session.poold.ends[0], answer, "", file));
  REQUIRE(server::send_control<ControlKind::image_found>(session.poold.ends[0], answer, "", file));
  ::close(file);
  const uint64_t second = session.load(kName);
  session.poold.give(kName, sealed(kImage));
  CHECK(session.client.result(second) == CUDA_SUCCESS);
}

TEST_CASE("an upload that is cut off half way, or an image the driver refuses, is not deposited") {
  Session session;
  SECTION("cut off") {
    auto part = bytes_of(wire::UploadPart{kUpload, kImage.size()});
    part.insert(part.end(), kImage.begin(), kImage.begin() + static_cast<long>(kImage.size() / 2));
    session.client.send(Command::upload_part, part);
    CHECK(session.client.ask(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload})) ==
          CUDA_ERROR_INVALID_IMAGE);
  }
  SECTION("refused") {
    const std::vector<std::byte> junk(64, std::byte{'j'});
    auto part = bytes_of(wire::UploadPart{kUpload, junk.size()});
    part.insert(part.end(), junk.begin(), junk.end());
    session.client.send(Command::upload_part, part);
    CHECK(session.client.ask(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload})) !=
          CUDA_SUCCESS);
  }
  CHECK(session.client.finish() == 0);
  CHECK(session.poold.silent());
}

TEST_CASE("does not ask poold for images of sizes that it does not cache") {
  Session session;
  wire::ImageName name = kName;
  name.size = GENERATE(uint64_t{0}, kLargest + 1, ~uint64_t{0});
  session.must_miss(session.load(name));
  CHECK(session.poold.silent());
}

TEST_CASE("misses every name without a cache") {
  TestClient client;
  client.retain();
  const auto reply =
      client.reply(client.send(Command::load_module, bytes_of(wire::LoadImage{kModule, 0}, kName), true));
  CHECK(reply.header.result == wire::kImageMissing);
  CHECK(reply.body.empty());
}

TEST_CASE("a load with half a name, or with a name and an upload, ends the session") {
  Session session;
  auto body = bytes_of(wire::LoadImage{kModule, 0}, kName);
  SECTION("half a name") {
    body.resize(body.size() - 1 - GENERATE(0u, 30u, 70u));
  }
  SECTION("more than a name") {
    body.push_back(std::byte{0});
  }
  SECTION("both") {
    body = bytes_of(wire::LoadImage{kModule, kUpload}, kName);
  }
  session.client.send(Command::load_module, body, true);
  CHECK(session.client.finish() == 1);
  CHECK(session.client.end_reason.find("malformed") != std::string::npos);
}
