#include "server/worker/session/refusals.h"

#include <algorithm>
#include <string_view>

#include "protocol/wire/refusal.h"

namespace gpupool::worker {
namespace {

void send_refusal(Outbox& outbox, const VisibleDevices& visible, const quota::Refusal& refusal) {
  const quota::Kind& kind = quota::kind_of(refusal.kind);
  const auto& gpus = visible.ordinals();
  const auto device = std::find(gpus.begin(), gpus.end(), refusal.gpu);
  const wire::QuotaRefusal body{
      .asked = refusal.asked,
      .used = refusal.used,
      .limit = refusal.limit,
      .device = device == gpus.end() ? -1 : static_cast<int32_t>(device - gpus.begin()),
      .unit = kind.unit == quota::Unit::count ? wire::kRefusedCount : wire::kRefusedBytes};
  const std::string_view key = kind.key;
  outbox.send(wire::MessageKind::quota_refusal, 0, 0, std::as_bytes(std::span(&body, 1)),
              std::as_bytes(std::span(key)));
}

}  // namespace

void send_refusals(Outbox& outbox, quota::Ledger& ledger, const SessionStart& start) {
  if (!start.takes_quota_refusals) return;
  const auto send = [&outbox, &start](const quota::Refusal& refusal) {
    send_refusal(outbox, start.visible, refusal);
  };
  ledger.on_refusal(send);
  *start.usage.refused = send;
}

}  // namespace gpupool::worker
