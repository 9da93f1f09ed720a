// Tests clients that violate the protocol: the session ends cleanly with everything freed, or answers with an
// error.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "protocol/images/fatbin.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/graphs.h"
#include "protocol/wire/images.h"
#include "protocol/wire/peers.h"
#include "protocol/wire/sharing.h"
#include "server/worker/handlers/call_rows.h"
#include "server/worker/session/handle_table.h"
#include "tests/server/worker/handlers/migration_frames.h"
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
constexpr uint64_t kPage = FakeDriver::kGranularity;
constexpr uint64_t kShared = 4096;

// The client's registered memory. A base class, so that it outlives the session.
struct Registered {
  testing::FakeDirectMemory direct;
  std::vector<std::byte> memory = std::vector<std::byte>(kShared);
  const transport::DirectMemory::Region region =
      *direct.add(memory.data(), memory.size(), transport::DirectMemory::Access::remote);
};

// A session with shared memory and direct access to the client's memory, so that every command has an effect.
struct Client : Registered, TestClient {
  Client() : TestClient(false, nullptr, 0, true, &direct) {}
};

struct Frame {
  uint16_t id;
  wire::Buffer body;
};

wire::Buffer named(const auto& fixed, const std::string& name) {
  auto body = bytes_of(fixed);
  wire::Writer(body).put_text(name);
  return body;
}

uint16_t row(const char* name) {
  for (const auto& known : worker::call_rows()) {
    if (std::string(known.name) == name) return known.id;
  }
  FAIL("no row " << name);
  return 0;
}

uint16_t id(Command command) {
  return static_cast<uint16_t>(command);
}

const std::string kPtx =
    ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry kernel()\n{\nret;\n}\n";

// A frame of each kind; valid in this order after begin().
std::vector<Frame> frames(const Client& client) {
  cuda::ImageSpans spans;
  spans.image = std::as_bytes(std::span(kPtx.c_str(), kPtx.size() + 1));
  cuda::Bytes image;
  REQUIRE(cuda::bundle(spans, image) == CUDA_SUCCESS);
  auto upload = bytes_of(wire::UploadPart{kUpload, image.view().size()});
  upload.insert(upload.end(), image.view().begin(), image.view().end());
  wire::Launch launch{};
  launch.function = kFunction;
  launch.flags = wire::kLaunchExtended;
  launch.attribute_count = 1;
  launch.parameter_bytes = 8;
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  const uint64_t here = client.address(0);
  const uint64_t linker = make_handle(Kind::linker, 1, 500);
  const uint64_t graph = make_handle(Kind::graph, 1, 400), executable = make_handle(Kind::graph_exec, 1, 401);
  const wire::GraphNode fill{wire::GraphNodeKind::fill, 1, sizeof(wire::GraphFill), 0, kContext},
      empty{wire::GraphNodeKind::empty, 0, 0, 0, 0};
  const uint64_t bodies = make_handle(Kind::graph, 1, 402);
  const uint64_t array = make_handle(Kind::array, 1, 600),
                 mipmapped = make_handle(Kind::mipmapped_array, 1, 601);
  const uint64_t reference = make_handle(Kind::texture_reference, 1, 603);
  const CUDA_ARRAY3D_DESCRIPTOR shape{16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  std::memcpy(&resource.res.array.hArray, &array, sizeof array);
  const wire::BulkCopy rows{0, here, 8, 4, 2, 0, 0};
  const wire::DirectCopy direct{rows, reinterpret_cast<uint64_t>(client.memory.data()),
                                client.region.remote_key, 0};
  auto to_peer = bytes_of(wire::PeerCopy{rows, 1});
  for (const char* const text : {"tcp://127.0.0.1:1", "session", "token"})
    wire::Writer(to_peer).put_text(text);
  wire::SharedName name{};
  name.magic = wire::kSharedName;
  std::vector<Frame> all {
    {id(Command::ping), {}}, {id(Command::acknowledge), bytes_of(wire::Acknowledge{1000, 0, 0})},
        {id(Command::move_addresses), bytes_of(wire::MoveAddresses{0, uint64_t{1} << 20})},
        {id(Command::avoid_addresses), bytes_of(wire::AddressRange{uint64_t{1} << 44, uint64_t{1} << 20})},
        {id(Command::retain_primary_context), bytes_of(wire::PrimaryContext{kContext, 0, 0})},
        {id(Command::release_primary_context), bytes_of(wire::PrimaryContext{kContext, 0, 0})},
        {id(Command::create_context), bytes_of(wire::CreateContext{make_handle(Kind::context, 1, 9), 0, 0})},
        {id(Command::create_context),
         bytes_of(wire::CreateContext{make_handle(Kind::context, 1, 10), 0, wire::kGreenContext},
                  make_handle(Kind::resource_description, 1, 11))},
        {id(Command::destroy_context), bytes_of(make_handle(Kind::context, 1, 9))},
        {id(Command::device_resource), bytes_of(wire::DeviceResource{0, 0, 1})},
        {id(Command::split_resource), bytes_of(wire::SplitResource{1, 2, 0, 1, 0})},
        {id(Command::describe_resources),
         bytes_of(wire::DescribeResources{make_handle(Kind::resource_description, 1, 11), 1, 0},
                  uint64_t{1})},
        {id(Command::map_memory), bytes_of(wire::MapMemory{here + 4 * kPage, kPage, 0, 0})},
        {id(Command::copy_to_device), bytes_of(wire::CopyToDevice{0, here, 4, 4, 2}, uint64_t{1})},
        {id(Command::copy_from_device), bytes_of(wire::CopyFromDevice{0, here, 8, 4, 2})},
        {id(Command::bulk_to_device), bytes_of(rows)},
        {id(Command::cancel_bulk), bytes_of(wire::CancelBulk{0})},
        {id(Command::bulk_from_device), bytes_of(rows)}, {id(Command::bulk_to_peer), to_peer},
        {id(Command::copy_to_peer), bytes_of(wire::CopyToPeer{rows, {}})},
        {id(Command::direct_to_device), bytes_of(direct)},
        {id(Command::direct_from_device), bytes_of(direct)},
        {id(Command::share_host_memory), bytes_of(wire::ShareHostMemory{1, kShared, 0})},
        {id(Command::copy_shared), bytes_of(wire::CopyShared{0, here, 8, 1, 0, 8, 4, 2, 1, 0})},
        {id(Command::release_host_memory), bytes_of(wire::ReleaseHostMemory{1})},
        {id(Command::export_memory), bytes_of(wire::ExportMemory{0, here})},
        {id(Command::import_memory),
         bytes_of(wire::ImportMemory{make_handle(Kind::memory, 1, 700), name, 0, 0})},
        {id(Command::export_event), bytes_of(wire::ExportEvent{event_handle(0)})},
        {id(Command::import_event), bytes_of(wire::ImportEvent{event_handle(1), name})},
        {id(Command::upload_part), upload},
        {id(Command::load_module), bytes_of(wire::LoadImage{kModule, kUpload})},
        {id(Command::load_library), bytes_of(wire::LoadImage{make_handle(Kind::library, 1, 3), kUpload})},
        {id(Command::get_function), named(wire::GetFunction{kFunction, kModule}, "kernel")},
        {id(Command::get_kernel),
         named(wire::GetFunction{make_handle(Kind::kernel, 1, 4), kModule}, "kernel")},
        {id(Command::kernel_function), bytes_of(wire::KernelFunction{kFunction, kFunction})},
        {id(Command::get_global), named(wire::GetGlobal{kModule}, "variable")},
        {id(Command::launch), bytes_of(launch, attribute, uint64_t{3})},
        {id(Command::host_function), bytes_of(wire::HostFunction{0, 1})},
        {id(Command::host_function_done), bytes_of(wire::HostFunctionDone{1, 0})},
        {id(Command::hold_stream), bytes_of(wire::HoldStream{0, 2})}, {id(Command::await_barriers), {}},
        {id(Command::await_room), bytes_of(wire::AwaitRoom{stream_handle(0)})},
        {id(Command::own_stream), bytes_of(wire::OwnStream{stream_handle(0)})},
        {id(Command::resume_stream), bytes_of(wire::ResumeStream{2})},
        {id(Command::synchronize_stream), bytes_of(uint64_t{0})},
        {id(Command::synchronize_event), bytes_of(event_handle(0))},
        {id(Command::await_record), bytes_of(event_handle(0))}, {id(Command::synchronize_context), {}},
        {row("cuStreamWaitEvent"), bytes_of(uint64_t{0}, event_handle(0), uint32_t{0})},
        {row("cuMemsetD8Async"), bytes_of(here, uint8_t{1}, uint64_t{16}, uint64_t{0})},
        {row("cuMemSetAccess"),
         bytes_of(here, kPage, uint8_t{1}, uint64_t{1}, CUmemAccessDesc{}, uint64_t{1})},
        {row("cuCtxGetCacheConfig"), bytes_of(uint8_t{1})},
        {id(Command::graph_nodes), bytes_of(wire::GraphNodes{graph, 2, 0}, empty, fill, uint32_t{0},
                                            wire::GraphFill{here, 8, 1, 1, 8, 1})},
        {id(Command::instantiate_graph), bytes_of(wire::InstantiateGraph{graph, executable, 0})},
        {id(Command::set_graph_node), bytes_of(wire::SetGraphNode{executable, 1, 0},
                                               wire::GraphNode{fill.kind, 0, fill.body_bytes, 0, kContext},
                                               wire::GraphFill{here, 8, 1, 1, 8, 1})},
        {id(Command::enable_graph_node), bytes_of(wire::SetGraphNode{executable, 1, 0})},
        {id(Command::launch_graph), bytes_of(wire::LaunchGraph{executable, 0})},
        {id(Command::upload_graph), bytes_of(wire::LaunchGraph{executable, 0})},
        {id(Command::update_graph), bytes_of(wire::UpdateGraph{executable, graph})},
        {id(Command::destroy_graph), bytes_of(wire::DestroyGraph{executable})},
        {id(Command::graph_nodes),
         bytes_of(
             wire::GraphNodes{bodies, 2, 0},
             wire::GraphNode{wire::GraphNodeKind::condition, 0, sizeof(wire::GraphCondition), 0, kContext},
             wire::GraphCondition{77, 0, 1},
             wire::GraphNode{wire::GraphNodeKind::conditional, 1, 24, 0, kContext}, uint32_t{0},
             wire::GraphConditional{77, 0, 1}, make_handle(Kind::graph, 1, 404))},
        {id(Command::instantiate_graph),
         bytes_of(wire::InstantiateGraph{bodies, make_handle(Kind::graph_exec, 1, 403), 0})},
        {row("cuArray3DCreate_v2"), bytes_of(array, uint8_t{1}, shape)},
        {row("cuMipmappedArrayCreate"), bytes_of(mipmapped, uint8_t{1}, shape, uint32_t{3})},
        {id(Command::array_part),
         bytes_of(wire::ArrayPart{make_handle(Kind::array, 1, 602), mipmapped, 1, 0})},
        {row("cuMemcpy3DAsync_v2"), bytes_of(uint8_t{1}, CUDA_MEMCPY3D{}, uint64_t{0})},
        {row("cuTexObjectCreate"), bytes_of(uint8_t{1}, uint8_t{1}, resource, uint8_t{1}, CUDA_TEXTURE_DESC{},
                                            uint8_t{1}, CUDA_RESOURCE_VIEW_DESC{})},
        {row("cuSurfObjectCreate"), bytes_of(uint8_t{1}, uint8_t{1}, resource)},
        {row("cuTexObjectDestroy"), bytes_of(uint64_t{1})}, {row("cuTexRefCreate"), bytes_of(reference)},
        {row("cuTexRefSetArray"), bytes_of(reference, array, uint32_t{1})},
        {row("cuTexRefSetAddress_v2"), bytes_of(uint8_t{1}, reference, here, uint64_t{64})},
        {row("cuTexRefSetAddress2D_v3"),
         bytes_of(reference, uint8_t{1}, CUDA_ARRAY_DESCRIPTOR{4, 4, CU_AD_FORMAT_FLOAT, 1}, here,
                  uint64_t{64})},
        {id(Command::get_reference),
         named(wire::GetReference{make_handle(Kind::texture_reference, 1, 604), kModule}, "texture")},
        {id(Command::set_border_color), bytes_of(wire::SetBorderColor{reference, {}})},
        {row("cuTexRefDestroy"), bytes_of(reference)},
        {id(Command::destroy_array), bytes_of(wire::DestroyArray{mipmapped})},
        {row("cuStreamSetAttribute"), bytes_of(uint64_t{0}, uint32_t{3}, uint8_t{1}, CUstreamAttrValue{})},
#if CUDA_VERSION >= 12000
        {row("cuTensorMapEncodeTiled"),
         bytes_of(uint8_t{1}, uint32_t{7}, uint32_t{1}, here, uint8_t{1}, uint64_t{1}, uint64_t{4},
                  uint8_t{1}, uint64_t{0}, uint8_t{1}, uint64_t{1}, uint32_t{4}, uint8_t{1}, uint64_t{1},
                  uint32_t{1}, uint32_t{0}, uint32_t{0}, uint32_t{0}, uint32_t{0})},
#endif
        {id(Command::kernel_names), bytes_of(wire::GetKernelNames{kModule, 0})},
        {id(Command::create_linker),
         bytes_of(wire::CreateLinker{linker, 1}, wire::JitOption{CU_JIT_MAX_REGISTERS, 0, 32})},
        {id(Command::add_link_input),
         named(wire::AddLinkInput{linker, kUpload, CU_JIT_INPUT_PTX, 0}, "input")},
        {id(Command::complete_link), bytes_of(wire::CompleteLink{linker})},
        {id(Command::linked_image), bytes_of(wire::GetLinkedImage{linker, 0})},
        {id(Command::destroy_linker), bytes_of(wire::DestroyLinker{linker})},
        {id(Command::free_memory), bytes_of(wire::FreeMemory{here, kPage, wire::kAllStreams})},
        {id(Command::reset_primary_context), bytes_of(wire::PrimaryContext{kContext, 0, 0})},
  };
  for (auto& [id, body] : migration_frames(kModule)) all.push_back({id, body});
  // cancel_bulk names the copy by its command's sequence number.
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].id == id(Command::cancel_bulk))
      all[i].body = bytes_of(wire::CancelBulk{client.next_sequence + i - 1});
  }
  return all;
}

size_t frame_count() {
  Client client;
  return frames(client).size();
}

void begin(Client& client) {
  const int shared = ::memfd_create("shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::posix_fallocate(shared, 0, kShared) == 0);
  REQUIRE(::fcntl(shared, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  client.give_descriptor(shared);
  client.retain();
  client.map(0, kPage);
  client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
}

// Checks that the session has freed everything.
void check_clean(TestClient& client) {
  CHECK(client.fake.contexts.empty());
  CHECK(client.fake.events.empty());
  CHECK(client.fake.pinned.empty());
  CHECK(client.fake.modules.empty());
  CHECK(client.fake.physical.empty());
  CHECK(client.fake.arrays.empty());
  CHECK(client.fake.textures.empty());
  CHECK(client.fake.misused == 0);
}

}  // namespace

TEST_CASE("the test has a frame of every command") {
  Client client;
  std::set<uint16_t> framed;
  for (const Frame& frame : frames(client)) framed.insert(frame.id);
#define COMMAND(number, name) \
  INFO(#name);                \
  CHECK(framed.contains(number));
#include "protocol/wire/commands.def"
#undef COMMAND
}

TEST_CASE("accepts the unchanged frame of every command") {
  Client client;
  begin(client);
  for (const Frame& frame : frames(client)) client.send(frame.id, frame.body, true);
  CHECK(client.finish() == 0);
  CHECK(client.direct.regions() == 1);
  CHECK(client.end_reason.empty());
  check_clean(client);
}

TEST_CASE("a truncated body fails or ends the session") {
  const size_t count = frame_count();
  for (size_t which = 0; which < count; ++which) {
    for (size_t cut = 0;; ++cut) {
      Client client;
      begin(client);
      const auto all = frames(client);
      const Frame& frame = all[which];
      if (cut >= frame.body.size()) break;
      // The commands on which the processing of this body depends.
      for (size_t before = 0; before < which; ++before) {
        if (all[before].id == id(Command::upload_part) || all[before].id == id(Command::load_module) ||
            all[before].id == id(Command::get_function)) {
          client.send(all[before].id, all[before].body);
        }
      }
      client.send(frame.id, {frame.body.begin(), frame.body.begin() + static_cast<ptrdiff_t>(cut)}, true);
      const int status = client.finish();
      INFO("command " << frame.id << " cut at " << cut << ": " << client.end_reason);
      const bool parts = cut >= bytes_before_parts(frame.id);
      CHECK((status == 1) == !parts);
      CHECK(client.end_reason.empty() == parts);
      check_clean(client);
    }
  }
}

TEST_CASE("an excess byte in a body ends the session") {
  const size_t count = frame_count();
  for (size_t which = 0; which < count; ++which) {
    Client client;
    begin(client);
    Frame frame = frames(client)[which];
    if (frame.id == id(Command::fill_memory)) continue;
    frame.body.push_back(std::byte{0});
    client.send(frame.id, frame.body, true);
    INFO("command " << frame.id);
    CHECK(client.finish() == 1);
    check_clean(client);
  }
}

TEST_CASE("a connection cut at any byte ends the session") {
  wire::Buffer stream;
  {
    Client client;
    begin(client);
    for (const Frame& frame : frames(client)) {
      if (frame.id == id(Command::goodbye)) continue;
      wire::CommandHeader header;
      if (frame.id == id(Command::bulk_to_peer) || frame.id == id(Command::copy_to_peer))
        header.flags = wire::kWantsReply;  // required
      header.length = static_cast<uint32_t>(frame.body.size());
      header.id = frame.id;
      header.context = kContext;
      wire::Writer writer(stream);
      writer.put(header);
      writer.put_bytes(frame.body.data(), frame.body.size());
    }
  }
  for (size_t cut = 0; cut < stream.size(); ++cut) {
    Client client;
    begin(client);
    wire::Buffer part(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(cut));
    for (size_t at = 0; at + sizeof(wire::CommandHeader) <= part.size();) {  // sets the sequence numbers
      wire::CommandHeader header;
      std::memcpy(&header, part.data() + at, sizeof header);
      header.sequence = client.next_sequence++;
      std::memcpy(part.data() + at, &header, sizeof header);
      at += sizeof header + header.length;
    }
    client.send_raw(part.data(), part.size());
    client.finish();
    check_clean(client);
  }
}

TEST_CASE("changed bytes in a body at most fail or end the session") {
  const size_t count = frame_count();
  unsigned seed = 1;
  for (size_t which = 0; which < count; ++which) {
    for (int round = 0; round < 40; ++round) {
      Client client;
      begin(client);
      const auto all = frames(client);
      for (size_t before = 0; before < which; ++before) {
        if (all[before].id == id(Command::upload_part) || all[before].id == id(Command::load_module) ||
            all[before].id == id(Command::get_function)) {
          client.send(all[before].id, all[before].body);
        }
      }
      wire::CommandHeader header;
      header.length = static_cast<uint32_t>(all[which].body.size());
      header.id = all[which].id;
      header.flags = wire::kWantsReply;
      header.context = kContext;
      header.sequence = client.next_sequence++;
      auto bytes = bytes_of(header);
      bytes.insert(bytes.end(), all[which].body.begin(), all[which].body.end());
      for (int change = 0; change < 1 + round % 3; ++change) {
        seed = seed * 1664525 + 1013904223;
        bytes[(seed >> 8) % bytes.size()] ^= static_cast<std::byte>(1 + (seed >> 24) % 255);
      }
      client.send_raw(bytes.data(), bytes.size());
      client.finish();
      check_clean(client);
    }
  }
}

TEST_CASE("sequence numbers must go up by one") {
  TestClient client;
  client.retain();
  client.next_sequence += GENERATE(1u, 100u, ~0u);
  client.send(Command::ping, {});
  CHECK(client.finish() == 1);
  CHECK(client.end_reason.find("received after") != std::string::npos);
}

TEST_CASE("unknown commands and invalid lengths end the session") {
  TestClient client;
  wire::CommandHeader header;
  header.sequence = 1;
  SECTION("unknown command") {
    header.id = 0x9000;
  }
  SECTION("length above the limit") {
    header.id = id(Command::ping);
    header.length = GENERATE(wire::kMaxBodyBytes + 1, ~0u);
  }
  client.send_raw(&header, sizeof header);
  CHECK(client.finish() == 1);
  CHECK_FALSE(client.end_reason.empty());
}

TEST_CASE("ends the session for handles that gpupool's client never creates") {
  TestClient client;
  client.retain();
  SECTION("an index above the limit") {
    client.call("cuEventCreate", bytes_of(make_handle(Kind::event, 1, worker::kMaxHandles), uint32_t{0}));
  }
  SECTION("low bits") {
    client.call("cuEventCreate", bytes_of(event_handle(1) | 1, uint32_t{0}));
  }
  SECTION("the top bit") {
    client.call("cuEventCreate", bytes_of(event_handle(1) | 1ull << 63, uint32_t{0}));
  }
  SECTION("another kind") {
    client.call("cuEventCreate", bytes_of(stream_handle(1), uint32_t{0}));
  }
  SECTION("a context's place") {
    client.call("cuEventCreate",
                bytes_of(make_handle(Kind::event, 1, cuda::index_of(kContext)), uint32_t{0}));
  }
  CHECK(client.finish() == 1);
  CHECK_FALSE(client.end_reason.empty());
  check_clean(client);
}

TEST_CASE("frees an object whose handle index is reused") {
  TestClient client;
  client.retain();
  for (uint32_t i = 0; i < 2000; ++i) {
    client.call("cuEventCreate", bytes_of(make_handle(Kind::event, i, 7), uint32_t{0}));
    client.call("cuStreamCreateWithPriority",
                bytes_of(make_handle(Kind::stream, i, 8), uint32_t{0}, int32_t{0}));
  }
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  CHECK(client.fake.event_count() < 10);
  CHECK(client.fake.streams_alive() == 1);
}

TEST_CASE("structs with host pointers do not reach the driver") {
  Client client;
  begin(client);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = &copy;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = client.address(0);
  copy.WidthInBytes = 16;
  copy.Height = 1;
  const auto ask = [&] { return client.ask("cuMemcpy2DAsync_v2", bytes_of(uint8_t{1}, copy, uint64_t{0})); };
  CHECK(ask() == CUDA_ERROR_NOT_SUPPORTED);
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = reinterpret_cast<CUarray>(&copy);
  CHECK(ask() == CUDA_ERROR_INVALID_HANDLE);
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = reinterpret_cast<CUdeviceptr>(&copy);
  CHECK(ask() == CUDA_ERROR_INVALID_VALUE);
  copy.srcDevice = client.address(0);
  copy.Height = ~0ull;
  copy.srcPitch = copy.dstPitch = 1ull << 63;
  CHECK(ask() == CUDA_ERROR_INVALID_VALUE);
}
