// Tests which commands the history keeps: those that make the present objects the way they are, and no
// others.
#include "server/worker/migration/history.h"

#include <memory>
#include <span>
#include <vector>

#include "protocol/calls/handles.h"
#include "protocol/calls/parameter.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/graphs.h"
#include "protocol/wire/images.h"
#include "protocol/wire/writer.h"
#include "server/worker/handlers/call_rows.h"
#include "server/worker/migration/history_row_rules.h"
#include "server/worker/migration/history_rules.h"
#include "tests/support/catch.h"

namespace gpupool::worker {
namespace {

using cuda::Kind;
using Id = wire::Command;

constexpr std::pair<uint16_t, const char*> kCommands[] = {
#define COMMAND(id, name) {id, #name},
#include "protocol/wire/commands.def"
#undef COMMAND
};

constexpr uint64_t handle(Kind kind, uint32_t index) {
  return cuda::make_handle(kind, 1, index);
}
constexpr uint64_t kContext = handle(Kind::context, 1), kModule = handle(Kind::module, 2),
                   kFunction = handle(Kind::function, 3), kStream = handle(Kind::stream, 4),
                   kEvent = handle(Kind::event, 5), kGraph = handle(Kind::graph, 6),
                   kExec = handle(Kind::graph_exec, 7), kBody = handle(Kind::graph, 8),
                   kMemory = handle(Kind::memory, 9);

uint16_t row(std::string_view name) {
  for (const CallRow& one : call_rows()) {
    if (one.name == name) return one.id;
  }
  FAIL("no row " << name);
  return 0;
}

// A history that is given commands as the executor gives them.
struct Recorder {
  Recorder() {
    history.turn_on();
    command(Id::retain_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0);
  }
  template <class... T>
  void note(uint16_t id, uint64_t context, const T&... values) {
    wire::Buffer body;
    wire::Writer writer(body);
    (writer.put(values), ...);
    REQUIRE(changes_history(id));
    const wire::CommandHeader header{.id = id, .context = context, .sequence = ++sequence};
    history.note(header, body, reply, effect_of(header, body, reply, false));
  }
  template <class Body, class... More>
  void command(Id id, const Body& body, uint64_t context = kContext, const More&... more) {
    note(static_cast<uint16_t>(id), context, body, more...);
  }
  template <class... T>
  void call(std::string_view name, const T&... values) {
    note(row(name), kContext, values...);
  }
  void load() { command(Id::load_module, wire::LoadImage{kModule, 0}); }
  void get_function() {
    command(Id::get_function, wire::GetFunction{kFunction, kModule}, kContext, uint32_t{1}, 'f');
  }
  // A graph of one kernel node and one event node.
  void make_graph(uint64_t graph, uint64_t function, uint64_t event) {
    wire::Launch launch{};
    launch.function = function;
    const wire::GraphNode kernel{wire::GraphNodeKind::kernel, 0, sizeof launch, 0, kContext};
    const wire::GraphNode record{wire::GraphNodeKind::event_record, 1, sizeof(wire::GraphEvent), 0, kContext};
    command(Id::graph_nodes, wire::GraphNodes{graph, 2, 0}, kContext, kernel, launch, record, uint32_t{0},
            wire::GraphEvent{event});
  }
  // The commands in the history, as their numbers.
  std::vector<uint64_t> kept() const {
    std::vector<uint64_t> numbers;
    history.for_each([&](const History::Entry& entry) { numbers.push_back(entry.header.sequence); });
    return numbers;
  }
  using Numbers = std::vector<uint64_t>;

  History history;
  wire::Buffer reply;  // to the next commands
  uint64_t sequence = 0;
};
using Numbers = Recorder::Numbers;

}  // namespace

TEST_CASE("a history that is off keeps nothing") {
  History history;
  history.note({}, {}, {}, {.makes = {kStream}});
  CHECK(history.size() == 0);
}

TEST_CASE("a history that exceeds its limit with an image lets go of everything") {
  struct Image final : KeptImage {
    std::vector<std::byte> content = std::vector<std::byte>(60'000);
    std::span<const std::byte> bytes() const override { return content; }
  };
  Recorder recorder;
  recorder.history.turn_on(100'000);
  std::weak_ptr<const KeptImage> images[3];
  for (uint32_t number = 0; number < 3; ++number) {
    const auto image = std::make_shared<Image>();
    images[number] = image;
    recorder.history.keep_image(image);
    recorder.command(Id::load_module, wire::LoadImage{handle(Kind::module, 20 + number), 0});
    CHECK((recorder.history.obstacle() != nullptr) == (number != 0));
  }
  for (const auto& image : images) CHECK(image.expired());
  CHECK((recorder.history.size() == 0 && recorder.history.bytes() == 0));
  recorder.call("cuEventCreate", kEvent, 0u);
  CHECK(recorder.history.size() == 0);
}

TEST_CASE("a command that makes an object stays until the object is destroyed") {
  Recorder recorder;
  recorder.load();
  recorder.get_function();
  recorder.call("cuStreamCreateWithPriority", kStream, 1u, 0);
  recorder.call("cuEventCreate", kEvent, 0u);
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4, 5});
  recorder.call("cuStreamDestroy_v2", kStream);
  CHECK(recorder.kept() == Numbers{1, 2, 3, 5});
  recorder.call("cuModuleUnload", kModule);  // with its functions
  CHECK(recorder.kept() == Numbers{1, 5});
  CHECK(recorder.history.context_of(kEvent) == kContext);
  CHECK(recorder.history.context_of(kStream) == 0);
}

TEST_CASE("a context takes its objects along, and not what belongs to none") {
  Recorder recorder;
  recorder.load();
  recorder.call("cuEventCreate", kEvent, 0u);
  const uint64_t library = handle(Kind::library, 20);
  recorder.command(Id::load_library, wire::LoadImage{library, 0}, 0);
  recorder.command(Id::reset_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0);
  CHECK(recorder.kept() == Numbers{4});
  CHECK(recorder.history.exists(library));
  CHECK_FALSE(recorder.history.exists(kContext));
  recorder.command(Id::retain_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0);
  CHECK(recorder.kept() == Numbers{4, 6});
}

TEST_CASE("a context that something still needs stays in the history with its end") {
  Recorder recorder;
  const uint64_t library = handle(Kind::library, 20);
  recorder.command(Id::load_library, wire::LoadImage{library, 0}, kContext);
  recorder.command(Id::reset_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0);
  recorder.command(Id::retain_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0);
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4});
  recorder.note(row("cuLibraryUnload"), 0, library);
  recorder.command(Id::reset_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0);
  CHECK(recorder.kept().empty());
}

TEST_CASE("only the last command of a setting stays") {
  Recorder recorder;
  recorder.load();
  recorder.get_function();
  constexpr int kDynamic = 8, kCarveout = 9;
  recorder.call("cuFuncSetAttribute", kFunction, kDynamic, 1024);
  recorder.call("cuFuncSetAttribute", kFunction, kCarveout, 50);
  recorder.call("cuFuncSetAttribute", kFunction, kDynamic, 2048);
  CHECK(recorder.kept() == Numbers{1, 2, 3, 5, 6});
  recorder.call("cuCtxSetLimit", 0u, uint64_t{1024});
  recorder.call("cuCtxSetLimit", 1u, uint64_t{1024});
  recorder.call("cuCtxSetLimit", 0u, uint64_t{2048});
  CHECK(recorder.kept() == Numbers{1, 2, 3, 5, 6, 8, 9});
  recorder.call("cuModuleUnload", kModule);
  CHECK(recorder.kept() == Numbers{1, 8, 9});
}

TEST_CASE("access to another context is forgotten when it is given up") {
  Recorder recorder;
  const uint64_t other = handle(Kind::context, 30);
  recorder.command(Id::retain_primary_context, wire::PrimaryContext{other, 1, 0}, 0);
  recorder.call("cuCtxEnablePeerAccess", other, 0u);
  CHECK(recorder.kept() == Numbers{1, 2, 3});
  recorder.call("cuCtxDisablePeerAccess", other);
  CHECK(recorder.kept() == Numbers{1, 2});
}

TEST_CASE("a graph keeps what it names, destroyed or not") {
  Recorder recorder;
  recorder.load();
  recorder.get_function();
  recorder.call("cuEventCreate", kEvent, 0u);
  recorder.make_graph(kGraph, kFunction, kEvent);
  recorder.command(Id::instantiate_graph, wire::InstantiateGraph{kGraph, kExec, 0});
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4, 5, 6});
  recorder.call("cuEventDestroy_v2", kEvent);
  recorder.call("cuModuleUnload", kModule);
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK_FALSE(recorder.history.exists(kEvent));
  recorder.command(Id::destroy_graph, wire::DestroyGraph{kExec});
  CHECK(recorder.kept() == Numbers{1});
}

TEST_CASE("an update replaces the update before, and what that one named goes") {
  Recorder recorder;
  recorder.load();
  recorder.get_function();
  recorder.make_graph(kGraph, kFunction, 0);
  recorder.command(Id::instantiate_graph, wire::InstantiateGraph{kGraph, kExec, 0});
  for (uint32_t i = 0; i < 3; ++i) {
    const uint64_t event = handle(Kind::event, 100 + i), graph = handle(Kind::graph, 100 + i);
    recorder.call("cuEventCreate", event, 0u);
    recorder.make_graph(graph, kFunction, event);
    recorder.command(Id::update_graph, wire::UpdateGraph{kExec, graph});
    recorder.call("cuEventDestroy_v2", event);
  }
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4, 5, 14, 15, 16, 17});
  recorder.command(Id::destroy_graph, wire::DestroyGraph{kExec});
  CHECK(recorder.kept() == Numbers{1, 2, 3});
}

TEST_CASE("nodes may be added in parts, and bodies live with their graph") {
  Recorder recorder;
  const wire::GraphNode conditional{wire::GraphNodeKind::conditional, 0,
                                    sizeof(wire::GraphConditional) + sizeof kBody, 0, kContext};
  recorder.make_graph(kGraph, 0, 0);
  recorder.command(Id::graph_nodes, wire::GraphNodes{kGraph, 1, 0}, kContext, conditional,
                   wire::GraphConditional{1, 0, 1}, kBody);
  recorder.make_graph(kBody, 0, 0);
  recorder.command(Id::instantiate_graph, wire::InstantiateGraph{kGraph, kExec, 0});
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4, 5});
  recorder.command(Id::destroy_graph, wire::DestroyGraph{kExec});
  CHECK(recorder.kept() == Numbers{1});
}

TEST_CASE("a mapping keeps its memory, also after the handle was released") {
  Recorder recorder;
  constexpr uint64_t kAddress = 0x7000'0000'0000, kSize = 2 << 20;
  recorder.call("cuMemCreate", kMemory, kSize, uint8_t{0}, uint64_t{0});
  recorder.call("cuMemMap", kAddress, kSize, uint64_t{0}, kMemory, 0ull);
  recorder.call("cuMemSetAccess", kAddress, kSize, uint8_t{0}, uint64_t{0}, uint64_t{0});
  recorder.call("cuMemSetAccess", kAddress, kSize, uint8_t{0}, uint64_t{0}, uint64_t{1});
  recorder.call("cuMemRelease", kMemory);
  CHECK(recorder.kept() == Numbers{1, 2, 3, 5, 6});
  recorder.call("cuMemUnmap", kAddress - kSize, kSize);
  CHECK(recorder.kept() == Numbers{1, 2, 3, 5, 6});
  recorder.call("cuMemUnmap", kAddress - kSize, 2 * kSize);
  CHECK(recorder.kept() == Numbers{1});
}

TEST_CASE("recorded events are known while they exist") {
  Recorder recorder;
  recorder.call("cuEventCreate", kEvent, 0u);
  recorder.history.note_record(kEvent);
  recorder.history.note_record(kEvent + 16);  // unknown
  CHECK(recorder.history.recorded() == std::set<uint64_t>{kEvent});
  recorder.call("cuEventDestroy_v2", kEvent);
  CHECK(recorder.history.recorded().empty());
}

TEST_CASE("records of events are recognized by their rows") {
  wire::Buffer body;
  wire::Writer writer(body);
  writer.put(kContext);
  writer.put(kEvent);
  CHECK(recorded_event(row("cuEventRecord"), wire::Reader(body)) == kContext);  // its first parameter
  CHECK(recorded_event(row("cuEventRecordWithFlags"), wire::Reader(body)) == kContext);
  CHECK(recorded_event(row("cuEventQuery"), wire::Reader(body)) == std::nullopt);
#if CUDA_VERSION >= 12050
  CHECK(recorded_event(row("cuCtxRecordEvent"), wire::Reader(body)) == kEvent);
#endif
}

namespace {

// Textures, surfaces and the arrays that they are on.
struct ArrayRecorder : Recorder {
  ArrayRecorder() {
    call("cuArray3DCreate_v2", kArray, uint8_t{1}, CUDA_ARRAY3D_DESCRIPTOR{});
    call("cuMipmappedArrayCreate", kLevels, uint8_t{1}, CUDA_ARRAY3D_DESCRIPTOR{}, 3u);
    command(Id::array_part, wire::ArrayPart{kLevel, kLevels, 1, 0});
  }
  void make_object(const char* row, uint64_t number, const CUDA_RESOURCE_DESC& resource) {
    wire::Writer(reply).put(number);
    call(row, uint8_t{1}, uint8_t{1}, resource);
    reply.clear();
  }
  static CUDA_RESOURCE_DESC on_array(uint64_t array) {
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = cuda::handle_from_bits<CUarray>(array);
    return resource;
  }
  static constexpr uint64_t kArray = handle(Kind::array, 50), kLevels = handle(Kind::mipmapped_array, 51),
                            kLevel = handle(Kind::array, 52);
};

}  // namespace

TEST_CASE("arrays stay until they are destroyed, with their levels") {
  ArrayRecorder recorder;
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4});
  recorder.command(Id::destroy_array, wire::DestroyArray{ArrayRecorder::kArray});
  CHECK(recorder.kept() == Numbers{1, 3, 4});
  recorder.command(Id::destroy_array, wire::DestroyArray{ArrayRecorder::kLevels});
  CHECK(recorder.kept() == Numbers{1});
}

TEST_CASE("textures and surfaces are known by their numbers, in their contexts") {
  ArrayRecorder recorder;
  const auto resource = ArrayRecorder::on_array(ArrayRecorder::kLevel);
  recorder.make_object("cuTexObjectCreate", 7, resource);
  recorder.make_object("cuSurfObjectCreate", 7, resource);
  recorder.make_object("cuTexObjectCreate", 8, CUDA_RESOURCE_DESC{CU_RESOURCE_TYPE_LINEAR, {}, 0});
  std::vector<bool> on_memory;  // of those whose replies are compared
  recorder.history.for_each([&](const History::Entry& entry) {
    if (entry.effect.checks_reply) on_memory.push_back(entry.effect.names_memory);
  });
  CHECK(on_memory == std::vector<bool>{false, false, true});
  recorder.call("cuTexObjectDestroy", uint64_t{7});
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4, 6, 7});
  recorder.call("cuTexObjectDestroy", uint64_t{8});
  recorder.call("cuSurfObjectDestroy", uint64_t{7});
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4});
  recorder.make_object("cuTexObjectCreate", 9, resource);
  recorder.command(Id::reset_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0);
  CHECK(recorder.kept().empty());
}

TEST_CASE("a destroyed array stays while a texture or a graph names it") {
  ArrayRecorder recorder;
  recorder.make_object("cuTexObjectCreate", 7, ArrayRecorder::on_array(ArrayRecorder::kLevel));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = cuda::handle_from_bits<CUarray>(ArrayRecorder::kArray);
  const wire::GraphNode node{wire::GraphNodeKind::copy, 0, sizeof copy, 0, kContext};
  recorder.command(Id::graph_nodes, wire::GraphNodes{kGraph, 1, 0}, kContext, node, copy);
  recorder.command(Id::instantiate_graph, wire::InstantiateGraph{kGraph, kExec, 0});
  recorder.command(Id::destroy_array, wire::DestroyArray{ArrayRecorder::kArray});
  recorder.command(Id::destroy_array, wire::DestroyArray{ArrayRecorder::kLevels});
  CHECK(recorder.history.obstacle() == nullptr);
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK_FALSE(recorder.history.exists(ArrayRecorder::kArray));
  recorder.command(Id::destroy_graph, wire::DestroyGraph{kExec});
  CHECK(recorder.kept() == Numbers{1, 3, 4, 5, 9});
  recorder.call("cuTexObjectDestroy", uint64_t{7});
  CHECK(recorder.kept() == Numbers{1});
}

TEST_CASE("a linker stays with its inputs until it is destroyed") {
  Recorder recorder;
  const uint64_t linker = handle(Kind::linker, 40);
  recorder.command(Id::create_linker, wire::CreateLinker{linker, 0});
  for (const uint32_t i : {1u, 2u})
    recorder.command(Id::add_link_input, wire::AddLinkInput{linker, handle(Kind::upload, i), i, 0});
  recorder.command(Id::complete_link, wire::CompleteLink{linker});
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4, 5});
  recorder.command(Id::destroy_linker, wire::DestroyLinker{linker});
  CHECK(recorder.kept() == Numbers{1});
}

// The compiler checks that each command is in one of the lists of history_rules.cc.
TEST_CASE("a command has an effect if it changes the history, and none otherwise") {
  const std::vector<std::byte> zeros(256);
  for (const auto& [id, name] : kCommands) {
    INFO(name);
    const HistoryEffect effect = effect_of({.id = id}, zeros, {}, false);
    const bool has_effect = !effect.makes.empty() || !effect.destroys.empty() || !effect.setting.empty() ||
                            effect.obstacle != nullptr;
    CHECK(has_effect == changes_history(id));
  }
}

TEST_CASE("an obstacle lasts as long as its object, or for good if there is none") {
  Recorder recorder;
  CHECK(recorder.history.obstacle() == nullptr);
  recorder.command(Id::share_host_memory, wire::ShareHostMemory{7, 4096, 0});
  CHECK(recorder.history.obstacle() != nullptr);
  recorder.command(Id::release_host_memory, wire::ReleaseHostMemory{7});
  CHECK(recorder.history.obstacle() == nullptr);
  recorder.command(Id::export_memory, uint64_t{0});
  CHECK(recorder.history.obstacle() != nullptr);
}

TEST_CASE("launches, copies and waits are not looked at") {
  for (const Id id : {Id::launch, Id::copy_to_device, Id::copy_from_device, Id::synchronize_stream,
                      Id::host_function, Id::map_memory, Id::free_memory, Id::launch_graph})
    CHECK_FALSE(changes_history(static_cast<uint16_t>(id)));
  for (const char* name : {"cuEventRecord", "cuStreamWaitEvent", "cuMemsetD32Async", "cuEventQuery"})
    CHECK_FALSE(changes_history(row(name)));
}

TEST_CASE("ten thousand settings and updates leave no trace") {
  Recorder recorder;
  recorder.load();
  recorder.get_function();
  recorder.make_graph(kGraph, kFunction, 0);
  recorder.command(Id::instantiate_graph, wire::InstantiateGraph{kGraph, kExec, 0});
  const auto work = [&](uint32_t round) {
    recorder.call("cuFuncSetAttribute", kFunction, 8, int(round));
    const uint64_t graph = cuda::make_handle(Kind::graph, 2, round);
    recorder.make_graph(graph, kFunction, 0);
    recorder.command(Id::update_graph, wire::UpdateGraph{kExec, graph});
    const uint64_t stream = cuda::make_handle(Kind::stream, 2, round);
    recorder.call("cuStreamCreateWithPriority", stream, 1u, 0);
    recorder.call("cuStreamDestroy_v2", stream);
  };
  work(0);
  const auto size = recorder.history.size();
  const auto bytes = recorder.history.bytes();
  for (uint32_t round = 1; round < 10'000; ++round) work(round);
  CHECK(recorder.history.size() == size);
  CHECK(recorder.history.bytes() == bytes);
}

}  // namespace gpupool::worker
