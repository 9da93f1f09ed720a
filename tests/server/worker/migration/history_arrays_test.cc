// Tests what the history keeps of arrays, textures and surfaces.
#include "tests/server/worker/migration/history_recorder.h"

namespace gpupool::worker {
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
    if (std::string_view(row) == "cuSurfObjectCreate")
      call(row, uint8_t{1}, uint8_t{1}, resource);
    else
      call(row, uint8_t{1}, uint8_t{1}, resource, uint8_t{0}, uint8_t{0});
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
  recorder.call("cuSurfObjectDestroy", uint64_t{7});
  CHECK(recorder.kept() == Numbers{1, 2, 3, 4, 7});
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
  recorder.command(Id::destroy_graph, wire::DestroyGraph{kExec});
  CHECK(recorder.kept() == Numbers{1, 3, 4, 5, 9});
  recorder.call("cuTexObjectDestroy", uint64_t{7});
  CHECK(recorder.kept() == Numbers{1});
}

}  // namespace gpupool::worker
