#include "server/softgpu/runtime/conditional.h"

#include "server/softgpu/exec/conditions.h"
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/graph.h"

namespace gpupool::softgpu {
namespace {

// Values of CUgraphConditionalNodeType, which older headers lack.
constexpr uint32_t kIf = 0, kWhile = 1;

}  // namespace

Condition::~Condition() {
  if (handle_ != 0) remove_condition(handle_);
}

void Condition::publish(uint64_t handle) {
  handle_ = handle;
  add_condition(handle, initial);
}

uint32_t Condition::value() const {
  return condition_value(handle_);
}
void Condition::assign_initial() const {
  set_condition(handle_, initial);
}

int next_body(uint32_t type, size_t bodies, uint32_t value) {
  if (type == kIf && value == 0) return bodies > 1 ? 1 : -1;
  if (type == kIf || type == kWhile) return value != 0 ? 0 : -1;
  return value < bodies ? static_cast<int>(value) : -1;
}

// Runs after a body: starts the next round of a WHILE node, or completes the node.
class ConditionalOp::BodyEnd final : public Op {
 public:
  explicit BodyEnd(Ref<ConditionalOp> node) : node_(std::move(node)) {}

 private:
  void start() override {
    const Ref<ConditionalOp> node = node_;
    complete();
    if (node->type_ == kWhile && !node->context()->failed() && !node->context()->ending())
      node->start();
    else
      node->complete();
  }
  void skip() override { start(); }
  const Ref<ConditionalOp> node_;
};

ConditionalOp::ConditionalOp(Ref<Condition> condition, uint32_t type, std::vector<Ref<GraphExec>> bodies)
    : condition_(std::move(condition)), type_(type), bodies_(std::move(bodies)) {}
ConditionalOp::~ConditionalOp() = default;

void ConditionalOp::start() {
  const int body = next_body(type_, bodies_.size(), condition_->value());
  if (body < 0) return complete();
  const Ref<Op> begin = make_ref<MarkerOp>(), end = make_ref<BodyEnd>(Ref<ConditionalOp>::share(this));
  end->set_context(context());
  const std::vector<Ref<Op>> ops = bodies_[static_cast<size_t>(body)]->make_ops(*context(), *begin, *end);
  for (const Ref<Op>& op : ops) op->submit();
  end->submit();
  begin->submit();
}

}  // namespace gpupool::softgpu
