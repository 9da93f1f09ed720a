// Tests commands one by one: calls of the table, handles, deferred errors, modules, launches, host functions,
// contexts.
#include "protocol/wire/commands.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "protocol/images/fatbin.h"
#include "protocol/images/fatbin_format.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/images.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;
using wire::Command;

namespace {

constexpr uint64_t kModule = make_handle(Kind::module, 1, 300);
constexpr uint64_t kFunction = make_handle(Kind::function, 1, 301);
constexpr uint64_t kUpload = make_handle(Kind::upload, 1, 302);

// Returns a bundle of PTX text or of a fat binary.
wire::Buffer bundle(const std::string& content) {
  cuda::ImageSpans spans;
  spans.image =
      std::as_bytes(std::span(content.c_str(), content.size() + (content.starts_with('.') ? 1 : 0)));
  cuda::Bytes bytes;
  REQUIRE(cuda::bundle(spans, bytes) == CUDA_SUCCESS);
  return {bytes.view().begin(), bytes.view().end()};
}
const std::string kPtx =
    ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry kernel()\n{\nret;\n}\n";

wire::Buffer named(const auto& fixed, const std::string& name) {
  auto body = bytes_of(fixed);
  wire::Writer(body).put_text(name);
  return body;
}

uint64_t load(TestClient& client, const std::string& ptx) {
  const auto image = bundle(ptx);
  auto part = bytes_of(wire::UploadPart{kUpload, image.size()});
  const size_t half = image.size() / 2;
  part.insert(part.end(), image.begin(), image.begin() + static_cast<ptrdiff_t>(half));
  client.send(Command::upload_part, part);
  part = bytes_of(wire::UploadPart{kUpload, image.size()});
  part.insert(part.end(), image.begin() + static_cast<ptrdiff_t>(half), image.end());
  client.send(Command::upload_part, part);
  return client.send(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload}), true);
}

}  // namespace

TEST_CASE("a row is executed in its context and answered") {
  TestClient client;
  CHECK(client.ask("cuCtxGetCacheConfig", bytes_of(uint8_t{1})) == CUDA_ERROR_INVALID_CONTEXT);
  client.retain();
  const Message reply = client.reply(client.call("cuCtxGetCacheConfig", bytes_of(uint8_t{1}), true));
  CHECK(reply.header.result == CUDA_SUCCESS);
  CHECK(reply.as<CUfunc_cache>() == CU_FUNC_CACHE_PREFER_L1);
  CHECK(client.finish() == 0);
}

TEST_CASE("a function that the device library lacks is not supported") {
  TestClient client;
  client.retain();
  CHECK(client.ask("cuCtxResetPersistingL2Cache", {}) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(client.result(client.send(0x7ff0, {}, true)) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("reports the first deferred error once with the next reply") {
  TestClient client;
  client.retain();
  client.call("cuStreamWaitEvent", bytes_of(uint64_t{0}, event_handle(7), uint32_t{0}));  // INVALID_HANDLE
  // INVALID_VALUE, not the first error.
  client.send(Command::map_memory, bytes_of(wire::MapMemory{1, 1, 0, 0}));
  SECTION("of a wait") {
    CHECK(client.ask(Command::synchronize_context, {}) == CUDA_ERROR_INVALID_HANDLE);
  }
  SECTION("of a call that failed itself: later") {
    CHECK(client.ask("cuEventQuery", bytes_of(event_handle(8))) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(client.ask("cuCtxGetCacheConfig", bytes_of(uint8_t{1})) == CUDA_ERROR_INVALID_HANDLE);
  }
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
}

TEST_CASE("ping is answered at once, goodbye ends the session") {
  TestClient client;
  const uint64_t sequence = client.send(Command::ping, {});
  const Message pong = client.receive();
  CHECK(pong.header.kind == wire::MessageKind::pong);
  CHECK(pong.header.sequence == sequence);
  client.send(Command::goodbye, {});
  CHECK(client.finish() == 0);
  CHECK(client.end_reason.empty());
}

TEST_CASE("rejects handles of a stale generation or another kind or a destroyed object") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
  CHECK(client.ask("cuEventQuery", bytes_of(event_handle(0))) == CUDA_SUCCESS);
  CHECK(client.ask("cuEventQuery", bytes_of(make_handle(Kind::event, 2, 200))) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuEventQuery", bytes_of(stream_handle(0))) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuEventQuery", bytes_of(uint64_t{0})) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuStreamQuery", bytes_of(event_handle(0))) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuStreamQuery", bytes_of(stream_handle(0))) == CUDA_SUCCESS);
  CHECK(client.ask("cuEventDestroy_v2", bytes_of(event_handle(0))) == CUDA_SUCCESS);
  CHECK(client.ask("cuEventQuery", bytes_of(event_handle(0))) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuEventDestroy_v2", bytes_of(event_handle(0))) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("streams: 0 and 1 are the context's own, 2 never arrives from our client") {
  TestClient client;
  client.retain();
  CHECK(client.ask("cuStreamQuery", bytes_of(uint64_t{0})) == CUDA_SUCCESS);
  CHECK(client.ask("cuStreamQuery", bytes_of(uint64_t{1})) == CUDA_SUCCESS);
  CHECK(client.ask("cuStreamQuery", bytes_of(uint64_t{2})) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuStreamDestroy_v2", bytes_of(uint64_t{0})) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("frees all objects at the end of the session") {
  TestClient client;
  client.retain();
  client.retain();
  for (uint32_t i = 0; i < 50; ++i) {
    client.create_stream(i);
    client.call("cuEventCreate", bytes_of(event_handle(i), uint32_t{2}));
  }
  client.map(0, FakeDriver::kGranularity);
  client.copy_in(stream_handle(0), 0, pattern(1000, 1));
  client.copy_in(stream_handle(1), 0, pattern(60'000, 1));
  CHECK(client.result(load(client, kPtx)) == CUDA_SUCCESS);
  CHECK(client.fake.event_count() >= 50);
  client.finish();
  CHECK(client.fake.events.empty());
  CHECK(client.fake.pinned.empty());
  CHECK(client.fake.modules.empty());
  CHECK(client.fake.physical.empty());
  CHECK(client.fake.mapped.empty());
  CHECK(client.fake.contexts.empty());
  CHECK(client.fake.primary == 0);
  for (const auto& stream : client.fake.streams) CHECK(stream == nullptr);
}

TEST_CASE("assembles and loads a module and finds its functions") {
  TestClient client;
  client.retain();
  const Message loaded = client.reply(load(client, kPtx));
  CHECK(loaded.header.result == CUDA_SUCCESS);
  CHECK(loaded.text().substr(12, 8) == "compiled");  // behind an empty error log and the time
  CHECK(client.fake.images.at(0) == kPtx);

  const Message found = client.reply(
      client.send(Command::get_function, named(wire::GetFunction{kFunction, kModule}, "kernel"), true));
  REQUIRE(found.header.result == CUDA_SUCCESS);
  const auto info = found.as<wire::FunctionInfo>();
  CHECK(info.attributes[3] == 103);
  CHECK(info.attributes[5] == 0);  // this attribute's query failed
  REQUIRE(info.parameter_count == 2);
  CHECK(found.as<wire::ParameterInfo>(sizeof info + 8).offset == 8);
  CHECK(found.as<wire::ParameterInfo>(sizeof info + 8).size == 4);
  CHECK(client.ask(Command::get_function, named(wire::GetFunction{kFunction, kModule}, "missing")) ==
        CUDA_ERROR_NOT_FOUND);

  const Message global =
      client.reply(client.send(Command::get_global, named(wire::GetGlobal{kModule}, "g"), true));
  const auto where = global.as<wire::GlobalInfo>();
  CHECK(where.size == client.fake.global.size());
  auto body = bytes_of(wire::CopyToDevice{0, where.address, 0, 4, 1}, uint32_t{77});
  CHECK(client.ask(Command::copy_to_device, body) == CUDA_SUCCESS);
  body = bytes_of(wire::CopyToDevice{0, where.address + 62, 0, 4, 1}, uint32_t{77});
  CHECK(client.ask(Command::copy_to_device, body) == CUDA_ERROR_INVALID_VALUE);  // beyond the variable
  CHECK(client.fake.global[0] == std::byte{77});

  CHECK(client.ask("cuModuleUnload", bytes_of(kModule)) == CUDA_SUCCESS);
  CHECK(client.ask(Command::launch, client.launch_body(kFunction, 0, {})) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("rejects malformed images before the driver sees them") {
  TestClient client;
  client.retain();
  CHECK(client.ask(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload})) ==
        CUDA_ERROR_INVALID_IMAGE);
  auto image = bundle(kPtx);
  image.resize(image.size() - 16);  // without the text's end and NUL
  auto part = bytes_of(wire::UploadPart{kUpload, image.size()});
  part.insert(part.end(), image.begin(), image.end());
  client.send(Command::upload_part, part);
  CHECK(client.ask(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload})) != CUDA_SUCCESS);
  part = bytes_of(wire::UploadPart{kUpload, uint64_t{100}}, uint64_t{0x464c457f});  // ELF magic, incomplete
  client.send(Command::upload_part, part);
  CHECK(client.ask(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload})) ==
        CUDA_ERROR_INVALID_IMAGE);
  CHECK(client.fake.images.empty());
  const Message broken = client.reply(load(client, kPtx + "// broken"));
  CHECK(broken.header.result == CUDA_ERROR_INVALID_PTX);
  CHECK(broken.text().substr(4, 5) + broken.text().substr(17, 8) == "errorcompiled");  // the two logs
}

TEST_CASE("an image without code for the device is refused with the reason where the driver gives none") {
  TestClient client;
  client.retain();
  namespace format = cuda::fatbin_format;
  format::EntryHeader entry{.kind = format::kKindElf,
                            .version = 0x101,
                            .header_size = sizeof entry,
                            .padded_payload = 8,
                            .arch = 80,
                            .flags = 0x11};
  const format::ContainerHeader head{format::kContainerMagic, 1, sizeof head, sizeof entry + 8};
  std::string image(reinterpret_cast<const char*>(&head), sizeof head);
  image.append(reinterpret_cast<const char*>(&entry), sizeof entry).append(8, 'x');
  const Message refused = client.reply(load(client, image));
  CHECK(refused.header.result == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(refused.text().find(
            "machine code for sm_80 and no PTX; the device, of compute capability 9.0, needs") !=
        std::string::npos);
}

TEST_CASE("uploads above the limit fail, parts that do not fit end the session") {
  TestClient client;
  client.retain();
  client.send(Command::upload_part, bytes_of(wire::UploadPart{kUpload, uint64_t{5} << 30}, uint32_t{0}));
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(client.ask(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload})) ==
        CUDA_ERROR_INVALID_IMAGE);
  client.send(Command::upload_part, bytes_of(wire::UploadPart{kUpload, 10}, uint32_t{0}));
  client.send(Command::upload_part, bytes_of(wire::UploadPart{kUpload, 11}, uint32_t{0}));
  CHECK(client.finish() == 1);
  CHECK(client.end_reason.find("inconsistent sizes") != std::string::npos);
}

TEST_CASE("launches reach the device with their parameters") {
  TestClient client;
  client.retain();
  CHECK(client.result(load(client, kPtx)) == CUDA_SUCCESS);
  client.send(Command::get_function, named(wire::GetFunction{kFunction, kModule}, "kernel"), true);
  client.receive();
  client.send(Command::launch, client.launch_body(kFunction, 0, bytes_of(uint64_t{5}, uint32_t{6})));
  client.send(Command::launch, client.launch_body(kFunction, 0, {}, wire::kLaunchCooperative));
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  REQUIRE(client.fake.launches.size() == 2);
  CHECK(client.fake.launches[0].function == "kernel");
  CHECK(client.fake.launches[0].parameters == bytes_of(uint64_t{5}, uint32_t{6}));
  CHECK_FALSE(client.fake.launches[0].extended);
  CHECK(client.fake.launches[1].extended);
  CHECK(client.fake.launches[1].attributes == 1);
  CHECK(client.ask(Command::launch, client.launch_body(kModule, 0, {})) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask(Command::launch, client.launch_body(kFunction, stream_handle(9), {})) ==
        CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("launch attributes that hold pointers are checked") {
  TestClient client;
  client.retain();
  CHECK(client.result(load(client, kPtx)) == CUDA_SUCCESS);
  client.send(Command::get_function, named(wire::GetFunction{kFunction, kModule}, "kernel"), true);
  client.receive();
  wire::Launch launch{};
  launch.function = kFunction;
  launch.flags = wire::kLaunchExtended;
  launch.attribute_count = 1;
  CUlaunchAttribute attribute{};
  attribute.id = static_cast<CUlaunchAttributeID>(7);  // programmatic event
  CHECK(client.ask(Command::launch, bytes_of(launch, attribute)) == CUDA_ERROR_INVALID_HANDLE);
  attribute.id = static_cast<CUlaunchAttributeID>(13);  // device-updatable node: the driver writes a pointer
  CHECK(client.ask(Command::launch, bytes_of(launch, attribute)) == CUDA_ERROR_NOT_SUPPORTED);
  attribute.id = static_cast<CUlaunchAttributeID>(1);  // access policy window
  attribute.value.accessPolicyWindow.base_ptr = &attribute;
  attribute.value.accessPolicyWindow.num_bytes = 4;
  CHECK(client.ask(Command::launch, bytes_of(launch, attribute)) == CUDA_ERROR_INVALID_VALUE);
  attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  CHECK(client.ask(Command::launch, bytes_of(launch, attribute)) == CUDA_SUCCESS);
}

TEST_CASE("a host function holds its stream until the client has run it") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.map(0, FakeDriver::kGranularity);
  const auto data = pattern(100, 3);
  client.copy_in(stream_handle(0), 0, data);
  const uint64_t copy = client.copy_out(stream_handle(0), 0, data.size());
  client.send(Command::host_function, bytes_of(wire::HostFunction{stream_handle(0), 4711}));
  const uint64_t wait = client.send(Command::synchronize_stream, bytes_of(stream_handle(0)), true);
  CHECK(client.data(copy) == data);  // work queued earlier in the stream comes first
  const Message turn = client.receive();
  CHECK(turn.header.kind == wire::MessageKind::host_callback);
  CHECK(turn.as<uint64_t>() == 4711);
  CHECK(client.silent());
  client.send(Command::host_function_done, bytes_of(wire::HostFunctionDone{4711, 0}));
  CHECK(client.result(wait) == CUDA_SUCCESS);
}

TEST_CASE("a session ends although a host function is never answered") {
  TestClient client;
  client.retain();
  client.send(Command::host_function, bytes_of(wire::HostFunction{0, 1}));
  CHECK(client.receive().header.kind == wire::MessageKind::host_callback);
  CHECK(client.finish() == 0);
}

TEST_CASE("a held stream waits until the client resumes it and other streams continue") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.create_stream(1);
  client.send(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(0), 77}));
  CHECK(client.ask(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(1), 77})) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(client.ask(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(7), 78})) ==
        CUDA_ERROR_INVALID_HANDLE);
  const uint64_t wait = client.send(Command::synchronize_stream, bytes_of(stream_handle(0)), true);
  CHECK(client.ask(Command::synchronize_stream, bytes_of(stream_handle(1))) == CUDA_SUCCESS);
  client.send(Command::resume_stream, bytes_of(wire::ResumeStream{78}));  // no stream is held by this id
  CHECK(client.silent());
  client.send(Command::resume_stream, bytes_of(wire::ResumeStream{77}));
  CHECK(client.result(wait) == CUDA_SUCCESS);
}

TEST_CASE("contexts and sessions end although a stream is held") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.send(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(0), 1}));
  client.send(Command::hold_stream, bytes_of(wire::HoldStream{0, 2}));
  const uint64_t reset =
      client.send(Command::reset_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0}), true, 0);
  Message answer;
  do answer = client.receive();
  while (answer.header.kind == wire::MessageKind::host_callback);
  CHECK(answer.header.sequence == reset);
  CHECK(answer.header.result == CUDA_SUCCESS);
  client.retain();
  client.create_stream(1);
  client.send(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(1), 3}));
  CHECK(client.finish() == 0);
}

TEST_CASE("destroys a context together with its objects") {
  TestClient client;
  client.retain();
  constexpr uint64_t kOther = make_handle(Kind::context, 1, 2);
  CHECK(client.ask(Command::create_context, bytes_of(wire::CreateContext{kOther, 0, 0})) == CUDA_SUCCESS);
  CHECK(client.ask(Command::create_context, bytes_of(wire::CreateContext{kOther, 0, 0})) ==
        CUDA_ERROR_INVALID_VALUE);
  client.call("cuEventCreate", bytes_of(event_handle(1), uint32_t{2}), false, kOther);
  CHECK(client.ask("cuEventQuery", bytes_of(event_handle(1))) == CUDA_SUCCESS);
  CHECK(client.ask(Command::destroy_context, bytes_of(kOther)) == CUDA_SUCCESS);
  CHECK(client.ask("cuEventQuery", bytes_of(event_handle(1))) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask(Command::destroy_context, bytes_of(kContext)) == CUDA_ERROR_INVALID_CONTEXT);

  client.create_stream(5);
  client.map(0, FakeDriver::kGranularity);
  CHECK(client.ask(Command::reset_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0})) ==
        CUDA_SUCCESS);
  CHECK(client.fake.used() == 0);
  CHECK(client.ask("cuStreamQuery", bytes_of(uint64_t{0})) == CUDA_ERROR_INVALID_CONTEXT);
  client.retain();
  CHECK(client.ask("cuStreamQuery", bytes_of(stream_handle(5))) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuStreamQuery", bytes_of(uint64_t{0})) == CUDA_SUCCESS);
  client.retain();
  CHECK(client.ask(Command::release_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0})) ==
        CUDA_SUCCESS);
  CHECK(client.ask("cuStreamQuery", bytes_of(uint64_t{0})) == CUDA_SUCCESS);
  CHECK(client.ask(Command::release_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0})) ==
        CUDA_SUCCESS);
  CHECK(client.ask(Command::release_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0})) ==
        CUDA_ERROR_INVALID_CONTEXT);
  CHECK(client.fake.locked([&] { return client.fake.primary; }) == 0);
}

TEST_CASE("sends the output of a kernel before the reply to the wait for it") {
  TestClient client(true);
  client.fake.in_kernel = [] {
    std::printf("from the device\n");
    [[maybe_unused]] const auto written = ::write(2, "and an error\n", 13);
  };
  client.retain();
  CHECK(client.result(load(client, kPtx)) == CUDA_SUCCESS);
  client.send(Command::get_function, named(wire::GetFunction{kFunction, kModule}, "kernel"), true);
  client.receive();
  client.send(Command::launch, client.launch_body(kFunction, 0, {}));
  const uint64_t wait = client.send(Command::synchronize_context, {}, true);
  std::string out;
  std::string error;
  while (true) {
    const Message message = client.receive();
    if (message.header.kind == wire::MessageKind::reply) {
      CHECK(message.header.sequence == wait);
      break;
    }
    REQUIRE((message.header.kind == wire::MessageKind::standard_output ||
             message.header.kind == wire::MessageKind::standard_error));
    (message.header.kind == wire::MessageKind::standard_output ? out : error) += message.text();
  }
  CHECK(client.finish() == 0);  // before the checks: their messages go where the session's output goes
  CHECK(out == "from the device\n");
  CHECK(error == "and an error\n");
}

TEST_CASE("loading and unloading modules leaks nothing") {
  TestClient client;
  client.retain();
  for (int i = 0; i < 300; ++i) {
    CHECK(client.result(load(client, kPtx)) == CUDA_SUCCESS);
    CHECK(client.ask(Command::get_global, named(wire::GetGlobal{kModule}, "g")) == CUDA_SUCCESS);
    client.call("cuModuleUnload", bytes_of(kModule));
  }
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  CHECK(client.fake.module_count() == 0);
  // The variable was unloaded with its module: its address is foreign again.
  const auto address = reinterpret_cast<uint64_t>(client.fake.global.data());
  CHECK(client.ask(Command::copy_to_device, bytes_of(wire::CopyToDevice{0, address, 0, 4, 1}, uint32_t{1})) ==
        CUDA_ERROR_INVALID_VALUE);
}
