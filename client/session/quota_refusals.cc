#include "client/session/quota_refusals.h"

#include <cstring>

#include "client/process/log.h"
#include "common/text/printable.h"
#include "common/text/units.h"

namespace gpupool::client {
namespace {

std::string amount(uint64_t number, uint32_t unit) {
  return unit == wire::kRefusedBytes ? bytes_text(number) : std::to_string(number);
}

}  // namespace

QuotaRefusals& quota_refusals() {
  static QuotaRefusals& all = *new QuotaRefusals;
  return all;
}

std::string refusal_text(const wire::QuotaRefusal& refusal, const std::string& name,
                         const std::string& server) {
  const std::string asked = refusal.asked == 0 ? "a request" : amount(refusal.asked, refusal.unit);
  return (refusal.device < 0 ? "" : "GPU " + std::to_string(refusal.device) + " of ") + server +
         ": the tenant's quota '" + name + "' refused " + asked +
         " (CUDA_ERROR_OUT_OF_MEMORY): " + amount(refusal.used, refusal.unit) + " of " +
         amount(refusal.limit, refusal.unit) +
         " in use; use less, end other programs of the tenant, or ask an operator to raise the quota. "
         "Further "
         "refusals by this quota are not printed";
}

bool QuotaRefusals::note(std::span<const std::byte> message, const std::string& server) {
  wire::QuotaRefusal body;
  if (message.size() <= sizeof body || message.size() > sizeof body + wire::kLongestQuotaName) return false;
  std::memcpy(&body, message.data(), sizeof body);
  const auto rest = message.subspan(sizeof body);
  const std::string name = printable({reinterpret_cast<const char*>(rest.data()), rest.size()});
  const std::lock_guard lock(mutex_);
  if (printed_.contains(name) || printed_.size() + pending_.size() >= kMostNames) return true;
  pending_[name] = {body, server};
  any_.store(true, std::memory_order_release);
  return true;
}

void QuotaRefusals::forget() {
  if (!any_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  pending_.clear();
  any_.store(false, std::memory_order_release);
}

void QuotaRefusals::print() {
  if (!any_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, refusal] : pending_) {
    log_warning("%s", refusal_text(refusal.body, name, refusal.server).c_str());
    printed_.insert(name);
  }
  pending_.clear();
  any_.store(false, std::memory_order_release);
}

}  // namespace gpupool::client
