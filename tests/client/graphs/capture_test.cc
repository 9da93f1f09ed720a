// Tests stream capture: nodes and their dependencies, refused calls, and the effect of a refusal on the
// capture. The graphs are plain lists of nodes.
#include "client/graphs/capture.h"

#include <algorithm>
#include <set>

#include "tests/client/fake_device.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;
using gpupool::client::test::make_context;
using gpupool::client::test::no_session;

// --- Stubs of the client functions that capture.cc calls ---

namespace gpupool::client {

std::mutex& graph_mutex() {
  static std::mutex* const only = new std::mutex;
  return *only;
}
Graph::~Graph() = default;
GraphNode* Graph::add(CUgraphNodeType type, uint64_t context, NodeWork work,
                      const std::vector<GraphNode*>& dependencies) {
  auto node = std::make_unique<GraphNode>();
  node->graph = this;
  node->type = type;
  node->context = context;
  node->work = std::move(work);
  node->dependencies = dependencies;
  nodes.push_back(std::move(node));
  return nodes.back().get();
}
bool Graph::connect(GraphNode& from, GraphNode& to, cuda::EdgeData edge) {
  to.dependencies.push_back(&from);
  to.edges.set(from, edge);
  return true;
}
ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}
std::set<uint64_t> non_blocking;  // handles of non-blocking streams
bool is_blocking(uint64_t stream) {
  return !non_blocking.contains(stream);
}

}  // namespace gpupool::client

namespace {

using Nodes = std::vector<GraphNode*>;

CUstream new_stream(Context& context, bool blocking = false) {
  auto object = std::make_unique<Object>();
  object->context = context.handle;
  object->session = context.session;
  const uint64_t handle = handles().mint(Kind::stream, std::move(object));
  if (!blocking) non_blocking.insert(handle);
  return cuda::handle_from_bits<CUstream>(handle);
}

// An event that is destroyed at the end of the test.
struct Event : Object {
  explicit Event(const Context& of) {
    context = of.handle;
    session = of.session;
    handle = cuda::make_handle(Kind::event, 1, ++last);
  }
  ~Event() override { capture::forget_event(name()); }
  CUevent name() const { return cuda::handle_from_bits<CUevent>(handle); }
  static inline uint32_t last = 0;
};

// A stream that is captured into its own graph; the capture ends with the test.
struct Captured {
  explicit Captured(Context& context, bool blocking = false,
                    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL)
      : stream(new_stream(context, blocking)), graph(std::make_shared<Graph>()) {
    const std::lock_guard lock(graph_mutex());
    REQUIRE(capture::begin(stream, graph, {}, mode, true) == CUDA_SUCCESS);
    now = capture::of(stream);
  }
  ~Captured() {
    const std::lock_guard lock(graph_mutex());
    capture::end(*now);
  }
  GraphNode& node(size_t i) const { return *graph->nodes.at(i); }

  const CUstream stream;
  const std::shared_ptr<Graph> graph;
  std::shared_ptr<Capture> now;
};

std::optional<CUresult> add(Context& context, CUstream stream, CUresult makes = CUDA_SUCCESS) {
  return capture::add(context, stream, CU_GRAPH_NODE_TYPE_KERNEL, [&](NodeWork&) { return makes; });
}

}  // namespace

TEST_CASE("capture: leaves work on streams that are not captured to the caller") {
  Context& context = make_context();
  CHECK_FALSE(capture::any());
  CHECK_FALSE(add(context, new_stream(context)));
  const Captured other(context);
  CHECK(capture::any());
  CHECK_FALSE(add(context, new_stream(context)));
  CHECK(capture::refuse(context, new_stream(context)) == CUDA_SUCCESS);
}

TEST_CASE("capture: each node depends on the node before it") {
  Context& context = make_context();
  const Captured captured(context);
  CHECK(add(context, captured.stream) == CUDA_SUCCESS);
  CHECK(add(context, captured.stream) == CUDA_SUCCESS);
  REQUIRE(captured.graph->nodes.size() == 2);
  CHECK(captured.node(0).dependencies.empty());
  CHECK(captured.node(0).context == context.handle);
  CHECK(captured.node(1).dependencies == Nodes{&captured.node(0)});
}

TEST_CASE(
    "capture: programmatic serialization makes an edge from the preceding kernel on GPUs that support it") {
  const int major = GENERATE(8, 9);
  Device device;
  device.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = major;
  Context& context = make_context();
  context.device = &device;
  const Captured captured(context);
  const CUstream joins = new_stream(context);
  const Event event(context);
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  const auto launch = [&](CUstream stream, int allowed) {
    attribute.value.programmaticStreamSerializationAllowed = allowed;
    return capture::add(context, stream, CU_GRAPH_NODE_TYPE_KERNEL, [](NodeWork&) { return CUDA_SUCCESS; },
                        {&attribute, 1});
  };
  add(context, captured.stream);
  CHECK(launch(captured.stream, 1) == CUDA_SUCCESS);
  CHECK(launch(captured.stream, 0) == CUDA_SUCCESS);
  CHECK(capture::record(context, captured.stream, event, 0) == CUDA_SUCCESS);
  CHECK(capture::wait(context, joins, event, 0) == CUDA_SUCCESS);
  CHECK(launch(joins, 1) == CUDA_SUCCESS);
  const auto edge = [&](size_t to, size_t from) { return captured.node(to).edges.of(captured.node(from)); };
  CHECK(edge(1, 0) == (major == 9 ? cuda::EdgeData{cuda::kPortProgrammatic, cuda::kDependencyProgrammatic}
                                  : cuda::kFullDependency));
  CHECK(edge(2, 1) == cuda::kFullDependency);
  CHECK(edge(3, 2) == cuda::kFullDependency);
  context.device = nullptr;
}

TEST_CASE("capture: waiting for a captured event joins the stream after the event's nodes") {
  Context& context = make_context();
  const Captured captured(context);
  const CUstream joins = new_stream(context);
  const Event event(context);
  add(context, captured.stream);
  CHECK(capture::record(context, captured.stream, event, 0) == CUDA_SUCCESS);
  add(context, captured.stream);
  CHECK(capture::wait(context, joins, event, 0) == CUDA_SUCCESS);
  CHECK(add(context, joins) == CUDA_SUCCESS);
  REQUIRE(captured.graph->nodes.size() == 3);
  CHECK(captured.node(2).dependencies == Nodes{&captured.node(0)});
  // Joining back: the next node of the first stream depends on both.
  CHECK(capture::record(context, joins, event, 0) == CUDA_SUCCESS);
  CHECK(capture::wait(context, captured.stream, event, 0) == CUDA_SUCCESS);
  add(context, captured.stream);
  CHECK(captured.node(3).dependencies == Nodes{&captured.node(1), &captured.node(2)});
}

TEST_CASE("capture: the host cannot query an event of a captured stream until it is recorded again") {
  Context& context = make_context();
  const Captured captured(context);
  const Event event(context);
  CHECK(capture::refuse_event(event.name()) == CUDA_SUCCESS);
  capture::record(context, captured.stream, event, 0);
  CHECK(capture::refuse_event(event.name()) == CUDA_ERROR_CAPTURED_EVENT);
  CHECK_FALSE(capture::record(context, new_stream(context), event, 0));
  CHECK(capture::refuse_event(event.name()) == CUDA_SUCCESS);
}

TEST_CASE("capture: external event records and waits become nodes") {
  Context& context = make_context();
  const Captured captured(context);
  const Event event(context);
  CHECK(capture::record(context, captured.stream, event, CU_EVENT_RECORD_EXTERNAL) == CUDA_SUCCESS);
  CHECK(capture::wait(context, captured.stream, event, CU_EVENT_WAIT_EXTERNAL) == CUDA_SUCCESS);
  REQUIRE(captured.graph->nodes.size() == 2);
  CHECK(captured.node(0).type == CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  CHECK(captured.node(1).type == CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  CHECK(std::get<EventWork>(captured.node(1).work).event == event.handle);
}

TEST_CASE("capture: waiting for an event from outside the capture invalidates it") {
  Context& context = make_context();
  const Captured captured(context);
  CHECK(capture::wait(context, captured.stream, Event(context), 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CHECK(add(context, captured.stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("capture: merging two captures invalidates both") {
  Context& context = make_context();
  const Captured one(context), other(context);
  const Event event(context);
  capture::record(context, one.stream, event, 0);
  CHECK(capture::wait(context, other.stream, event, 0) == CUDA_ERROR_STREAM_CAPTURE_MERGE);
  CHECK(one.now->invalid);
  CHECK(other.now->invalid);
}

TEST_CASE("capture: an event of another server cannot join a stream to a capture") {
  Context& context = make_context();
  Context& elsewhere = make_context(1);
  const Captured captured(context);
  const Event event(context);
  capture::record(context, captured.stream, event, 0);
  CHECK(capture::wait(elsewhere, new_stream(elsewhere), event, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(captured.now->invalid);
}

TEST_CASE("capture: refuses work that cannot be captured with its reason once and then as invalidated") {
  Context& context = make_context();
  const Captured captured(context);
  CHECK(capture::refuse(context, captured.stream, CUDA_ERROR_NOT_SUPPORTED) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(capture::refuse(context, captured.stream, CUDA_ERROR_NOT_SUPPORTED) ==
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(add(context, captured.stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(captured.graph->nodes.empty());
}

TEST_CASE("capture: invalid arguments keep the capture valid and unsupported calls invalidate it") {
  Context& context = make_context();
  const Captured captured(context);
  CHECK(add(context, captured.stream, CUDA_ERROR_INVALID_VALUE) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(captured.now->invalid);
  CHECK(add(context, captured.stream, CUDA_ERROR_NOT_SUPPORTED) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(captured.now->invalid);
}

TEST_CASE("capture: work on the null stream invalidates captures of blocking streams") {
  Context& context = make_context();
  SECTION("a blocking stream") {
    const Captured captured(context, true);
    CHECK(capture::joins_null_stream(context));
    CHECK(add(context, nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK(captured.now->invalid);
  }
  SECTION("a non-blocking stream") {
    const Captured captured(context);
    CHECK_FALSE(capture::joins_null_stream(context));
    CHECK_FALSE(add(context, nullptr));
    CHECK_FALSE(captured.now->invalid);
  }
  SECTION("a stream of another context") {
    const Captured captured(make_context(), true);
    CHECK_FALSE(add(context, nullptr));
    CHECK_FALSE(captured.now->invalid);
  }
}

TEST_CASE("capture: a wait for the whole context invalidates the captures in it") {
  Context& context = make_context();
  const Captured captured(context), other(make_context());
  CHECK(capture::refuse_context(context) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(captured.now->invalid);
  CHECK_FALSE(other.now->invalid);
}

TEST_CASE("capture: refuses unsafe calls by the modes of capture and thread") {
  Context& context = make_context();
  thread_state().capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CHECK(capture::refuse_unsafe() == CUDA_SUCCESS);
  SECTION("a capture in relaxed mode allows unsafe calls") {
    const Captured captured(context, false, CU_STREAM_CAPTURE_MODE_RELAXED);
    CHECK(capture::refuse_unsafe() == CUDA_SUCCESS);
  }
  SECTION("a thread in relaxed mode may make unsafe calls") {
    const Captured captured(context);
    thread_state().capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CHECK(capture::refuse_unsafe() == CUDA_SUCCESS);
    CHECK_FALSE(captured.now->invalid);
  }
  SECTION("otherwise the capture is invalidated") {
    const Captured captured(context);
    CHECK(capture::refuse_unsafe() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(captured.now->invalid);
  }
  SECTION("another thread's capture matters only in global mode") {
    const Captured captured(context, false, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    captured.now->thread = {};
    CHECK(capture::refuse_unsafe() == CUDA_SUCCESS);
    captured.now->mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CHECK(capture::refuse_unsafe() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  thread_state().capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
}

TEST_CASE("capture: refuses the null stream and a stream that is already captured") {
  Context& context = make_context();
  const Captured captured(context);
  const std::lock_guard lock(graph_mutex());
  CHECK(capture::begin(captured.stream, std::make_shared<Graph>(), {}, CU_STREAM_CAPTURE_MODE_GLOBAL, true) ==
        CUDA_ERROR_ILLEGAL_STATE);
  CHECK(capture::begin(nullptr, std::make_shared<Graph>(), {}, CU_STREAM_CAPTURE_MODE_GLOBAL, true) ==
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_CASE("capture: ending it ends the capture of all its streams") {
  Context& context = make_context();
  const CUstream joins = new_stream(context);
  {
    const Captured captured(context);
    const Event event(context);
    capture::record(context, captured.stream, event, 0);
    CHECK(capture::wait(context, joins, event, 0) == CUDA_SUCCESS);
  }
  CHECK_FALSE(capture::any());
  CHECK_FALSE(capture::any_event());
  CHECK_FALSE(add(context, joins));
}

TEST_CASE("capture: destroying a joined stream keeps the capture and destroying its origin ends it") {
  Context& context = make_context();
  const Captured captured(context);
  const CUstream joins = new_stream(context);
  const Event event(context);
  capture::record(context, captured.stream, event, 0);
  CHECK(capture::wait(context, joins, event, 0) == CUDA_SUCCESS);
  SECTION("a joined stream") {
    capture::forget_stream(joins);
    CHECK_FALSE(captured.now->invalid);
    CHECK_FALSE(captured.now->ended);
    CHECK(add(context, captured.stream) == CUDA_SUCCESS);
  }
  SECTION("the origin stream") {
    capture::forget_stream(captured.stream);
    CHECK(captured.now->ended);
    CHECK_FALSE(add(context, joins));
  }
}
