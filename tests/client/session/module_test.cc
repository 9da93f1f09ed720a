// Tests modules against a fake worker: how images reach the server, look-ups of functions and variables, and
// wrong answers to them.
#include "client/session/module.h"

#include "tests/client/fake_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using wire::Command;

namespace {

const std::string kPtx = ".version 7.8\n.target sm_52\n.address_size 64\n.visible .entry kernel() { ret; }\n";

// The reply to get_function for a kernel with these parameters.
std::string description(const std::vector<wire::ParameterInfo>& parameters) {
  wire::FunctionInfo info{};
  info.attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 512;
  info.parameter_count = static_cast<uint32_t>(parameters.size());
  std::string body = bytes_of(info);
  for (const auto& parameter : parameters) body += bytes_of(parameter);
  return body;
}

struct Loader {
  FakeWorker worker;
  Session* session = nullptr;
  Context* context = nullptr;

  explicit Loader(uint64_t largest_image = 0) {
    worker.offer.image_nonce = std::string(sizeof(image::Nonce), 'n');
    worker.offer.largest_image = largest_image;
    session = &open_session(worker);
    context = &make_context(*session);
  }
  CUresult load(const std::string& image, uint64_t* module) {
    return client::load(*session, context, Kind::module, image.c_str(), {}, module);
  }
  uint64_t loaded() {
    uint64_t module = 0;
    REQUIRE(load(kPtx, &module) == CUDA_SUCCESS);
    return module;
  }
  CUresult function(uint64_t module, const char* name, uint64_t* handle) {
    return look_up(*session, context, Kind::module, Kind::function, module, name, handle);
  }
  CUresult variable(uint64_t module, CUdeviceptr* address, size_t* bytes) {
    return get_global(*session, context, Kind::module, module, "variable", address, bytes);
  }
};

}  // namespace

TEST_CASE("module: a large image is uploaded in parts, which the load names") {
  Loader loader;
  std::string ptx = kPtx;
  uint32_t state = 1;  // a comment that does not compress
  while (ptx.size() < 5u << 20) {
    state = state * 1664525 + 1013904223;
    ptx += "//" + std::to_string(state) + std::to_string(~state) + "\n";
  }
  uint64_t module = 0;
  REQUIRE(loader.load(ptx, &module) == CUDA_SUCCESS);
  const auto parts = loader.worker.received(Command::upload_part);
  REQUIRE(parts.size() >= 2);
  const auto first = parts[0].as<wire::UploadPart>();
  uint64_t bytes = 0;
  for (const auto& part : parts) {
    CHECK(part.as<wire::UploadPart>().upload == first.upload);
    CHECK(part.as<wire::UploadPart>().total == first.total);
    CHECK(part.body.size() <= sizeof first + wire::kBulkChunkBytes);
    bytes += part.body.size() - sizeof first;
  }
  CHECK(bytes == first.total);
  const auto load = loader.worker.await_command(Command::load_module).as<wire::LoadImage>();
  CHECK(load.upload == first.upload);
  CHECK(load.handle == module);
}

TEST_CASE("module: an image that the server keeps is only named") {
  Loader loader(1 << 20);
  const uint64_t module = loader.loaded();
  const ReceivedCommand command = loader.worker.await_command(Command::load_module);
  CHECK(command.as<wire::LoadImage>().handle == module);
  CHECK(command.as<wire::LoadImage>().upload == 0);
  CHECK(command.body.size() == sizeof(wire::LoadImage) + sizeof(wire::ImageName));
  CHECK(loader.worker.received(Command::upload_part).empty());
}

TEST_CASE("module: an image that the server does not have is uploaded") {
  Loader loader(1 << 20);
  loader.worker.on(Command::load_module, [&](const ReceivedCommand& command) {
    const bool named = command.as<wire::LoadImage>().upload == 0;
    loader.worker.reply(command.header.sequence, "",
                        named ? static_cast<CUresult>(wire::kImageMissing) : CUDA_SUCCESS);
  });
  (void)loader.loaded();
  CHECK(loader.worker.received(Command::load_module).size() == 2);
  CHECK(loader.worker.received(Command::upload_part).size() == 1);
}

TEST_CASE("module: a rejected image leaves no module") {
  Loader loader;
  loader.worker.answer(Command::load_module, "", CUDA_ERROR_INVALID_PTX);
  uint64_t module = 0;
  CHECK(loader.load(kPtx, &module) == CUDA_ERROR_INVALID_PTX);
  CHECK_FALSE(handles().find(Kind::module, module));
}

TEST_CASE("module: a function is asked for once") {
  Loader loader;
  const uint64_t module = loader.loaded();
  loader.worker.answer(Command::get_function, description({{0, 8}, {8, 4}}));
  uint64_t first = 0, second = 0;
  REQUIRE(loader.function(module, "kernel", &first) == CUDA_SUCCESS);
  REQUIRE(loader.function(module, "kernel", &second) == CUDA_SUCCESS);
  CHECK(first == second);
  CHECK(loader.worker.received(Command::get_function).size() == 1);
  const auto* const function = handles().find_as<Function>(Kind::function, first);
  REQUIRE(function);
  CHECK(function->name == "kernel");
  CHECK(function->parameters.size() == 2);
  CHECK(function->parameter_bytes == 12);
  CHECK(function->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] == 512);
}

TEST_CASE("module: a function that was not found is asked for again") {
  Loader loader;
  const uint64_t module = loader.loaded();
  loader.worker.answer(Command::get_function, "", CUDA_ERROR_NOT_FOUND);
  uint64_t handle = 0;
  CHECK(loader.function(module, "kernel", &handle) == CUDA_ERROR_NOT_FOUND);
  CHECK_FALSE(handles().find(Kind::function, handle));
  CHECK(loader.function(module, "kernel", &handle) == CUDA_ERROR_NOT_FOUND);
  CHECK(loader.worker.received(Command::get_function).size() == 2);
}

TEST_CASE("module: a malformed description of a function fails the session") {
  Loader loader;
  const uint64_t module = loader.loaded();
  const std::string good = description({{0, 8}});
  loader.worker.answer(Command::get_function, GENERATE_COPY(good.substr(0, good.size() - 1), good + "x", ""));
  uint64_t handle = 0;
  CHECK(loader.function(module, "kernel", &handle) == Session::failure());
  CHECK(loader.session->failed());
}

TEST_CASE("module: a variable is asked for once in each context") {
  Loader loader;
  const uint64_t module = loader.loaded();
  loader.worker.answer(Command::get_global, bytes_of(wire::GlobalInfo{0x7f00'0000'1000, 64, 0, 0}));
  CUdeviceptr address = 0;
  size_t bytes = 0;
  for (int i = 0; i < 2; ++i) {
    CHECK(loader.variable(module, &address, &bytes) == CUDA_SUCCESS);
    CHECK(address == 0x7f00'0000'1000);
    CHECK(bytes == 64);
  }
  CHECK(loader.worker.received(Command::get_global).size() == 1);
  CHECK(loader.session->addresses().knows(address));
  ++loader.context->epoch;
  CHECK(loader.variable(module, &address, &bytes) == CUDA_SUCCESS);
  CHECK(loader.worker.received(Command::get_global).size() == 2);
}

TEST_CASE("module: a malformed description of a variable fails the session") {
  Loader loader;
  const uint64_t module = loader.loaded();
  loader.worker.answer(Command::get_global,
                       GENERATE(std::string("short"), bytes_of(wire::GlobalInfo{~0ull - 10, 64, 0, 0})));
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CHECK(loader.variable(module, &address, &bytes) == Session::failure());
  CHECK(loader.session->failed());
}
