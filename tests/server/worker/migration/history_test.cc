// Tests which commands the history keeps: those that make the present objects the way they are, and no
// others.
#include "tests/server/worker/migration/history_recorder.h"

namespace gpupool::worker {

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
