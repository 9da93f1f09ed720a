// A session whose client lies about objects: at its end no object may be left and no call of the driver may
// have been misused. Used from the test's thread.
#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <string>

#include "protocol/images/fatbin.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/images.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

namespace gpupool::worker::test {

using cuda::Kind;
using cuda::make_handle;
using wire::Command;

constexpr uint64_t kPage = FakeDriver::kGranularity;
constexpr uint64_t kArray = make_handle(Kind::array, 1, 300);
constexpr uint64_t kMipmapped = make_handle(Kind::mipmapped_array, 1, 303);
constexpr uint64_t kModule = make_handle(Kind::module, 1, 304), kUpload = make_handle(Kind::upload, 1, 305);
constexpr uint8_t kThere = 1;

class HostileSession : public TestClient {
 public:
  HostileSession() {
    retain();
    map(0, kPage);
    create_stream(0);
  }
  ~HostileSession() {
    if (!over_) finish();
    CHECK(fake.misused == 0);
    CHECK(fake.arrays.empty());
    CHECK(fake.textures.empty());
    CHECK(fake.graphs.empty());
    CHECK(fake.executables.empty());
    CHECK(fake.physical.empty());
  }
  // True if the session has ended because of a malformed command.
  bool ends() {
    over_ = true;
    return finish() == 1 && !end_reason.empty();
  }
  CUresult create_levels(uint64_t handle, unsigned levels) {
    return ask("cuMipmappedArrayCreate", bytes_of(handle, kThere, kShape, levels));
  }
  uint64_t end() const { return fake.range_base + fake.range_size; }
  // Loads a module, as a program does.
  void load() {
    const std::string ptx =
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry kernel()\n{\nret;\n}\n";
    cuda::ImageSpans spans;
    spans.image = std::as_bytes(std::span(ptx.c_str(), ptx.size() + 1));
    cuda::Bytes image;
    REQUIRE(cuda::bundle(spans, image) == CUDA_SUCCESS);
    auto upload = bytes_of(wire::UploadPart{kUpload, image.view().size()});
    upload.insert(upload.end(), image.view().begin(), image.view().end());
    send(Command::upload_part, upload);
    REQUIRE(ask(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload})) == CUDA_SUCCESS);
  }

  static constexpr CUDA_ARRAY3D_DESCRIPTOR kShape{64, 32, 0, CU_AD_FORMAT_FLOAT, 4, 0};

 private:
  bool over_ = false;
};

wire::Buffer named(const auto& fixed, const std::string& name) {
  auto body = bytes_of(fixed);
  wire::Writer(body).put_text(name);
  return body;
}

template <class Object>
Object object(uint64_t bits) {
  return std::bit_cast<Object>(bits);
}

}  // namespace gpupool::worker::test
