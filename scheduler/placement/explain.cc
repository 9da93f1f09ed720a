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

uint32_t place_of(const Cluster& cluster, Distance spread, uint32_t slot) {
  return spread == Distance::rack ? cluster.rack(slot) : spread == Distance::zone ? cluster.zone(slot) : 0;
}

// Returns how many GPUs of the request a node in this state can take.
int count_gpus(const Cluster& cluster, const Request& request, const Shape& shape, const NodeState& state) {
  int gpus = std::min(state.fitting_gpus(shape), request.gpus);
  while (gpus > 0 && !state.fits(cluster.shape_of(request, gpus))) --gpus;
  return gpus;
}

// The findings about all nodes.
struct Survey {
  std::map<std::string, uint32_t> reasons;  // number of nodes by the reason against them now
  std::map<std::string, uint32_t> never;    // the same for nodes that would not fit if they were idle
  // By rack or zone: the number of GPUs that fit now, and that would fit if all nodes were idle.
  std::map<uint32_t, std::pair<int64_t, int64_t>> places;
  int most_share = 0;
};

// Explains a request whose GPUs may be on several nodes.
void explain_places(const Request& request, const Survey& survey, Explanation& out) {
  int64_t most_now = 0, most_ever = 0;
  for (const auto& [place, gpus] : survey.places) {
    most_now = std::max(most_now, gpus.first);
    most_ever = std::max(most_ever, gpus.second);
  }
  out.ever = most_ever >= request.gpus;
  if (most_now >= request.gpus) {
    out.text = "it fits now";
    return;
  }
  const std::string where = request.spread == Distance::rack   ? "one rack"
                            : request.spread == Distance::zone ? "one zone"
                                                               : "all nodes";
  out.text = wanted(request) + ": " +
             (out.ever ? where + " have " + std::to_string(most_now) + " free at most"
                       : "impossible: " + where + " have " + std::to_string(most_ever) + " at most");
}

// Explains a request for a single node, none of which fits now.
void explain_nodes(const Request& request, const Survey& survey, Explanation& out) {
  const auto& list = out.ever ? survey.reasons : survey.never;
  std::vector<std::pair<uint32_t, std::string>> parts;
  for (const auto& [what, nodes] : list) parts.emplace_back(nodes, what);
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  out.text = wanted(request) + (out.ever ? ": currently impossible" : ": impossible");
  if (parts.empty()) out.text += "; there are no nodes";
  for (size_t i = 0; i < parts.size(); ++i)
    out.text += (i == 0 ? ": " : ", ") + counted(parts[i].first, "node") + " " + parts[i].second;
  if (out.ever && request.gpus == 1 && request.milli < kWholeGpu)
    out.text += "; the largest free share is " + milli_text(survey.most_share);
}

}  // namespace

// Returns the reason why a node that would fit if it were idle does not fit now; null if it does.
const char* Placer::obstacle_now(const Request& request, const Shape& shape, uint32_t slot) const {
  if (cluster_.drained(cluster_.id(slot))) return "drained";
  if (const char* const why = obstacle(cluster_.state(slot), shape)) return why;
  return allowed(request, slot) ? nullptr : "a group rule";
}

Explanation Placer::explain(const Request& request) const {
  Explanation out;
  if (Result<void> checked = check(request); !checked) {
    out.text = "impossible: " + checked.error().message;
    return out;
  }
  const bool over_nodes = !request.one_host();
  const Shape shape = cluster_.shape_of(request, over_nodes ? 1 : request.gpus);
  Survey survey;
  for (uint32_t slot = 0; slot < cluster_.slots(); ++slot) {
    if (!cluster_.has(cluster_.id(slot))) continue;
    const NodeState& state = cluster_.state(slot);
    const NodeState& empty = cluster_.empty_state(slot);
    const char* const lacking = obstacle(empty, shape);
    const char* const why = lacking ? lacking : obstacle_now(request, shape, slot);
    if (lacking) {
      ++survey.never[lacking];
      const bool by_kind =
          lacking == std::string("another GPU model") || lacking == std::string("too few GPUs");
      ++survey.reasons[by_kind ? lacking : "too small"];
    } else {
      for (int gpu = 0; gpu < state.gpus && state.open; ++gpu)
        survey.most_share = std::max(survey.most_share, state.level(gpu));
      if (why) ++survey.reasons[why];
    }
    if (over_nodes) {
      auto& [now, ever] = survey.places[place_of(cluster_, request.spread, slot)];
      if (!why) now += count_gpus(cluster_, request, shape, state);
      if (!lacking) ever += count_gpus(cluster_, request, shape, empty);
      continue;
    }
    out.ever |= !lacking;
    if (!why && out.text.empty())
      out.text = "it fits now, for example on node '" + cluster_.spec(cluster_.id(slot)).name + "'";
  }
  for (const auto& [what, nodes] : survey.reasons) out.reasons.push_back({what, nodes});
  std::stable_sort(out.reasons.begin(), out.reasons.end(),
                   [](const auto& a, const auto& b) { return a.nodes > b.nodes; });
  if (over_nodes)
    explain_places(request, survey, out);
  else if (out.text.empty())
    explain_nodes(request, survey, out);
  return out;
}

}  // namespace gpupool::placement
