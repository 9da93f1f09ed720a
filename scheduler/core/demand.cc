#include "scheduler/core/demand.h"

#include <algorithm>

namespace gpupool::scheduler {
namespace {

constexpr uint32_t kMaxGpusOfRequest = 4096;
constexpr size_t kRequestIdBytes = 16;
constexpr int kMaxWords = 16;
constexpr size_t kLongestWord = 128;
constexpr size_t kLongestName = 1024;

template <class Words>
std::optional<std::string> check_words(const char* what, const Words& words) {
  if (words.size() > kMaxWords) return std::string("more than 16 ") + what;
  for (const std::string& word : words) {
    if (word.empty() || word.size() > kLongestWord)
      return std::string(what) + " must have 1 to 128 characters";
  }
  return std::nullopt;
}

}  // namespace

Demand::Demand(const pool::Request& request)
    : gpus(request.gpus()),
      milli(request.compute_milli()),
      memory(request.memory_bytes()),
      models(request.models().begin(), request.models().end()),
      one_host(request.one_host() || request.gpus() == 1),
      host{request.cpu_milli(), request.host_memory_bytes()} {}

uint64_t Demand::memory_of(uint64_t all) const {
  if (milli == kWholeGpu) return all;
  return memory != 0 ? memory
                     : static_cast<uint64_t>(static_cast<unsigned __int128>(all) * milli / kWholeGpu);
}

bool Demand::suits(const std::string& model, uint64_t all_memory) const {
  return memory <= all_memory && memory_of(all_memory) <= most_memory &&
         (models.empty() || models.contains(model));
}

HostAmount Demand::host_beside(uint32_t here) const {
  if (here == gpus) return host;
  const auto part = [&](uint64_t whole) { return (whole + gpus - 1) / gpus * here; };
  return {part(host.cpu_milli), part(host.memory)};
}

uint32_t Demand::gpus_beside(const HostAmount& free, uint32_t here) const {
  if (one_host) return host.within(free) ? here : 0;
  while (here > 0 && !host_beside(here).within(free)) --here;
  return here;
}

std::string Demand::shape() const {
  std::string text;
  for (const uint64_t word :
       {uint64_t{gpus}, uint64_t{milli}, memory, uint64_t{one_host}, host.cpu_milli, host.memory}) {
    text += std::to_string(word) + ' ';
  }
  for (const std::string& model : models) text += model + '\n';
  return text;
}

std::optional<std::string> check_request(const pool::Request& request) {
  if (request.gpus() == 0 || request.gpus() > kMaxGpusOfRequest) return "gpus must be from 1 to 4096";
  if (request.compute_milli() == 0 || request.compute_milli() > kWholeGpu)
    return "the compute share of each GPU (pool-run --compute) must be above 0 and at most 100 percent";
  if (!lease::Mode_IsValid(request.mode())) return "unknown mode";
  if (!lease::Priority_IsValid(request.priority())) return "unknown priority";
  if (auto wrong = check_words("models", request.models())) return wrong;
  if (auto wrong = check_words("near", request.near())) return wrong;
  if (auto wrong = check_words("apart_from", request.apart_from())) return wrong;
  if (auto wrong = check_words("labels", request.labels())) return wrong;
  if (std::max({request.program().size(), request.host().size(), request.user().size()}) > kLongestName)
    return "program, host and user must be at most 1024 bytes";
  if (!request.id().empty() && request.id().size() != kRequestIdBytes)
    return "the request id must have 16 bytes";
  return std::nullopt;
}

}  // namespace gpupool::scheduler
