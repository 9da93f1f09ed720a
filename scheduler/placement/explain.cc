// Placer::explain(): why a request cannot be placed now.
#include <algorithm>
#include <map>

#include "common/text/units.h"
#include "scheduler/placement/placer.h"

namespace gpupool::placement {
namespace {

std::string amount(uint64_t bytes) {
  constexpr uint64_t kMib = 1 << 20;
  return bytes < 10 * kMib ? std::to_string(bytes) + " bytes" : std::to_string(bytes / kMib) + " MiB";
}

// Returns the first reason why the shape does not fit into this state of a node; null if it fits.
const char* obstacle(const NodeState& state, const Shape& shape) {
  if (shape.gpus > 0) {
    if ((shape.models >> state.model & 1) == 0) return "another GPU model";
    if (state.gpus < shape.gpus) return "too few GPUs";
    int milli = 0, memory = 0;
    for (int gpu = 0; gpu < state.gpus; ++gpu) {
      milli += state.milli[gpu] >= shape.milli;
      memory += state.memory_bytes[gpu] >= shape.memory_bytes;
    }
    if (milli < shape.gpus)
      return shape.milli == kWholeGpu ? "too few whole GPUs free" : "too little GPU share free";
    if (memory < shape.gpus) return "too little GPU memory free";
    if (state.fitting_gpus(shape) < shape.gpus) return "GPU share and GPU memory free on different GPUs";
  }
  if (state.cpu_milli < shape.cpu_milli) return "too few processors free";
  if (state.host_memory < shape.host_memory) return "too little host memory free";
  return nullptr;
}

std::string wanted(const Request& request) {
  std::string text;
  if (request.gpus == 0)
    return milli_text(request.cpu_milli) + " processors and " +
           amount(static_cast<uint64_t>(request.host_memory));
  text = counted(static_cast<uint64_t>(request.gpus), request.milli == kWholeGpu ? "whole GPU" : "GPU share");
  if (request.milli != kWholeGpu) text += " of " + milli_text(request.milli);
  if (request.memory_bytes > 0) text += " with " + amount(request.memory_bytes);
  if (!request.models.empty()) {
    text += " of model ";
    for (size_t i = 0; i < request.models.size(); ++i) text += (i == 0 ? "" : " or ") + request.models[i];
  }
  return text;
}

}  // namespace

Explanation Placer::explain(const Request& request) const {
  Explanation out;
  if (Result<void> checked = check(request); !checked) {
    out.text = "impossible: " + checked.error().message;
    return out;
  }
  const bool over_nodes = request.gpus > 1 && request.spread != Distance::host;
  const Shape shape = cluster_.shape_of(request, over_nodes ? 1 : request.gpus);
  std::map<std::string, uint32_t> reasons;
  std::map<std::string, uint32_t> never;
  // By rack or zone: the number of GPUs that fit now, and that would fit if all nodes were idle.
  std::map<std::pair<bool, uint32_t>, std::pair<int64_t, int64_t>> places;
  int most_share = 0;
  for (uint32_t slot = 0; slot < cluster_.slots(); ++slot) {
    if (!cluster_.has(cluster_.id(slot))) continue;
    const NodeState& empty = cluster_.empty_state(slot);
    const char* const lacking = obstacle(empty, shape);
    int64_t ever_here = 0, now_here = 0;
    if (lacking != nullptr) {
      ++never[lacking];
      ++reasons[lacking == std::string("another GPU model") || lacking == std::string("too few GPUs")
                    ? lacking
                    : std::string("too small")];
    } else {
      ever_here = 1;
      const char* const why =
          cluster_.drained(cluster_.id(slot)) ? "drained" : obstacle(cluster_.state(slot), shape);
      for (int gpu = 0; gpu < cluster_.state(slot).gpus && cluster_.state(slot).open; ++gpu)
        most_share = std::max(most_share, cluster_.state(slot).level(gpu));
      if (why != nullptr) {
        ++reasons[why];
      } else if (!allowed(request, slot)) {
        ++reasons["a group rule"];
      } else {
        now_here = 1;
      }
    }
    if (!over_nodes) {
      out.ever |= ever_here > 0;
      if (now_here > 0 && out.text.empty())
        out.text = "it fits now, for example on node '" + cluster_.spec(cluster_.id(slot)).name + "'";
      continue;
    }
    const auto count = [&](const NodeState& state) {
      int gpus = std::min(state.fitting_gpus(shape), request.gpus);
      while (gpus > 0 && !state.fits(cluster_.shape_of(request, gpus))) --gpus;
      return gpus;
    };
    const uint32_t place = request.spread == Distance::rack   ? cluster_.rack(slot)
                           : request.spread == Distance::zone ? cluster_.zone(slot)
                                                              : 0;
    auto& [now, ever] = places[{true, place}];
    if (now_here > 0) now += count(cluster_.state(slot));
    if (ever_here > 0) ever += count(empty);
  }
  for (const auto& [what, nodes] : reasons) out.reasons.push_back({what, nodes});
  std::stable_sort(out.reasons.begin(), out.reasons.end(),
                   [](const auto& a, const auto& b) { return a.nodes > b.nodes; });

  if (over_nodes) {
    int64_t most_now = 0, most_ever = 0;
    for (const auto& [place, gpus] : places) {
      most_now = std::max(most_now, gpus.first);
      most_ever = std::max(most_ever, gpus.second);
    }
    out.ever = most_ever >= request.gpus;
    const char* const where = request.spread == Distance::rack   ? "one rack"
                              : request.spread == Distance::zone ? "one zone"
                                                                 : "all nodes";
    if (most_now >= request.gpus) {
      out.text = "it fits now";
      return out;
    }
    if (out.ever) {
      out.text = wanted(request) + ": " + where + " have " + std::to_string(most_now) + " free at most";
      return out;
    }
    out.text = wanted(request) + ": impossible: " + where + " have " + std::to_string(most_ever) + " at most";
    return out;
  }
  if (!out.text.empty()) return out;
  const auto& list = out.ever ? reasons : never;
  std::vector<std::pair<uint32_t, std::string>> parts;
  for (const auto& [what, nodes] : list) parts.emplace_back(nodes, what);
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  out.text = wanted(request) + (out.ever ? ": currently impossible" : ": impossible");
  if (parts.empty()) out.text += "; there are no nodes";
  for (size_t i = 0; i < parts.size(); ++i)
    out.text += (i == 0 ? ": " : ", ") + counted(parts[i].first, "node") + " " + parts[i].second;
  if (out.ever && request.gpus == 1 && request.milli < kWholeGpu)
    out.text += "; the largest free share is " + milli_text(most_share);
  return out;
}

}  // namespace gpupool::placement
