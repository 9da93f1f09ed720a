// Checkpoints of arrays. A checkpoint destroys the session's arrays on the device, and a restore creates them
// again. The driver returns new pointers, so the session's handles are mapped to them, and texture and
// surface objects are created again under their old numbers, which kernels hold.
#include <algorithm>
#include <utility>

#include "protocol/calls/array_bytes.h"
#include "server/worker/memory/arrays.h"

namespace gpupool::worker {
namespace {

// Returns the array that a texture or surface resource is on.
void* array_of(const CUDA_RESOURCE_DESC& resource) {
  return resource.resType == CU_RESOURCE_TYPE_ARRAY ? static_cast<void*>(resource.res.array.hArray)
                                                    : resource.res.mipmap.hMipmappedArray;
}
void name_array(CUDA_RESOURCE_DESC& resource, void* array) {
  if (resource.resType == CU_RESOURCE_TYPE_ARRAY)
    resource.res.array.hArray = static_cast<CUarray>(array);
  else
    resource.res.mipmap.hMipmappedArray = static_cast<CUmipmappedArray>(array);
}

// Makes another context the session's current context for the duration of a scope.
class ScopedContext {
 public:
  ScopedContext(Contexts& contexts, ContextState* context)
      : contexts_(contexts), before_(contexts.current()) {
    contexts_.enter(context);
  }
  ~ScopedContext() { contexts_.enter(before_); }

 private:
  Contexts& contexts_;
  ContextState* const before_;
};

}  // namespace

class Arrays::CheckpointedArray final : public CheckpointImage::Piece {
 public:
  CheckpointedArray(Arrays& arrays, void* array, const ArrayState& made, uint64_t bytes)
      : Piece(made.context->device, bytes, made.charged),
        arrays_(arrays),
        before_(array),
        now_(array),
        state_(made) {}

  CUresult copy_out(std::byte* to) override {
    return each([&](CUarray part, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
      return arrays_.scrubber_.copy_out(std::exchange(to, to + cuda::array_bytes(shape)), part, shape,
                                        device);
    });
  }
  CUresult leave_device() override {
    if (!now_) return CUDA_SUCCESS;
    arrays_.states_.at(before_).away = true;
    const ScopedContext scope(arrays_.contexts_, state_.context);
    const CUresult result = arrays_.unmake(now_, state_);
    if (result == CUDA_SUCCESS) now_ = nullptr;
    return result;
  }
  CUresult restore_to_device(const std::byte* from) override {
    if (now_) return CUDA_SUCCESS;
    const ScopedContext scope(arrays_.contexts_, state_.context);
    CUresult result = arrays_.make(state_, &now_);
    if (result != CUDA_SUCCESS) return now_ = nullptr, result;
    return each([&](CUarray part, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
      return arrays_.scrubber_.copy_in(part, std::exchange(from, from + cuda::array_bytes(shape)), shape,
                                       device);
    });
  }
  void on_charged() override { arrays_.states_.at(before_).away = false; }

  // Adds the mapping from the old to the new device pointers, for the array and its levels.
  void rename(std::unordered_map<void*, void*>* wholes, std::unordered_map<void*, void*>* parts) {
    const ArrayState& before = arrays_.states_.at(before_);
    (*(state_.level_count == 0 ? parts : wholes))[before_] = now_;
    for (unsigned level = 0; level < state_.level_count; ++level)
      (*parts)[before.levels[level]] = state_.levels[level];
  }
  void renamed(std::unordered_map<void*, ArrayState>* into) {
    state_.away = true;  // until on_charged()
    before_ = now_;
    (*into)[now_] = state_;
  }

 private:
  CUresult each(const std::function<CUresult(CUarray, const CUDA_ARRAY3D_DESCRIPTOR&)>& visit) {
    const ScopedContext scope(arrays_.contexts_, state_.context);
    return arrays_.for_each_part(now_, state_, visit);
  }

  Arrays& arrays_;
  void* before_;  // key in Arrays::states_
  void* now_;     // current device pointer; null: not on the device
  ArrayState state_;
};

// The texture and surface objects on arrays. First in the list of pieces, so that objects leave the device
// before their arrays and come back after them.
class Arrays::CheckpointedObjects final : public CheckpointImage::Piece {
 public:
  CheckpointedObjects(Arrays& arrays, HandleTable& table) : Piece(0, 0, 0), arrays_(arrays), table_(table) {}
  void add(CheckpointedArray* array) { pieces_.push_back(array); }
  // Call in the order in which the objects are to be created again.
  void add(Objects::value_type& object) { objects_.push_back(&object); }

  CUresult copy_out(std::byte*) override { return CUDA_SUCCESS; }
  CUresult leave_device() override {
    for (size_t i = objects_.size(); i-- > 0;) {
      auto& [key, object] = *objects_[i];
      if (object.away) continue;
      const auto& [context, surface, number] = key;
      const ScopedContext scope(arrays_.contexts_, context);
      if (const CUresult result = arrays_.destroy_object(surface, number); result != CUDA_SUCCESS)
        return result;
      object.away = true;
    }
    return CUDA_SUCCESS;
  }
  CUresult restore_to_device(const std::byte*) override {
    rename();
    for (Objects::value_type* const known : objects_) {
      auto& [key, object] = *known;
      if (!object.away) continue;
      const auto& [context, surface, number] = key;
      const ScopedContext scope(arrays_.contexts_, context);
      const CUresult result = arrays_.make_object_again(*object.of_array, surface, number);
      if (result != CUDA_SUCCESS) return result;
      object.away = false;
    }
    return CUDA_SUCCESS;
  }

 private:
  void rename() {
    std::unordered_map<void*, void*> wholes, parts;
    for (CheckpointedArray* const array : pieces_) array->rename(&wholes, &parts);
    std::unordered_map<void*, ArrayState> made;
    for (CheckpointedArray* const array : pieces_) array->renamed(&made);
    std::swap(arrays_.states_, made);
    table_.replace(cuda::Kind::mipmapped_array, wholes);
    table_.replace(cuda::Kind::array, parts);
    for (Objects::value_type* const known : objects_) {
      CUDA_RESOURCE_DESC& resource = known->second.of_array->resource;
      const auto& names = resource.resType == CU_RESOURCE_TYPE_ARRAY ? parts : wholes;
      name_array(resource, names.at(array_of(resource)));
    }
  }

  Arrays& arrays_;
  HandleTable& table_;
  std::vector<CheckpointedArray*> pieces_;
  std::vector<Objects::value_type*> objects_;
};

void Arrays::add_pieces(CheckpointImage::Pieces& pieces, HandleTable& table) {
  if (states_.empty()) return;
  auto names = std::make_unique<CheckpointedObjects>(*this, table);
  CheckpointedObjects& all = *names;
  pieces.push_back(std::move(names));
  for (auto& [array, made] : states_) {
    uint64_t bytes = 0;
    (void)for_each_part(array, made, [&](CUarray, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
      return bytes += cuda::array_bytes(shape), CUDA_SUCCESS;
    });
    auto piece = std::make_unique<CheckpointedArray>(*this, array, made, bytes);
    all.add(piece.get());
    pieces.push_back(std::move(piece));
  }
  const auto there = all_parts();
  for (auto& entry : objects_) {
    if (entry.second.of_array && there.contains(array_of(entry.second.of_array->resource))) all.add(entry);
  }
}

// Returns all existing arrays and levels. Objects on other arrays name destroyed ones and cannot be restored.
std::unordered_set<const void*> Arrays::all_parts() const {
  std::unordered_set<const void*> all;
  for (const auto& [array, made] : states_) {
    all.insert(array);
    all.insert(made.levels.begin(), made.levels.end());
  }
  return all;
}

// Drivers assign the lowest free number or the most recently freed one, so objects with other numbers are
// kept until the wanted number comes up, then destroyed.
CUresult Arrays::make_object_again(const Description& description, bool surface, unsigned long long number,
                                   size_t most_others) {
  std::vector<unsigned long long> others;
  CUresult result = CUDA_SUCCESS;
  while (result == CUDA_SUCCESS) {
    if (api_.set_next_texture) api_.set_next_texture(number);
    unsigned long long got = 0;
    result = make_object(description, surface, &got);
    if (result != CUDA_SUCCESS || got == number) break;
    others.push_back(got);
    if (others.size() > most_others) result = CUDA_ERROR_NOT_SUPPORTED;
  }
  for (; !others.empty(); others.pop_back()) (void)destroy_object(surface, others.back());
  return result;
}

// Tests on two additional objects whether the driver assigns freed numbers again, so that a failure costs
// nothing.
bool Arrays::driver_reuses_handle(const Description& description, bool surface) {
  unsigned long long first[2] = {}, again[2] = {};
  const auto destroy =
      [&](const unsigned long long(&numbers)[2]) {  // higher number first, as in leave_device()
        for (const int i : {1, 0}) {
          if (numbers[i] != 0) (void)destroy_object(surface, numbers[i]);
        }
      };
  bool same = make_object(description, surface, &first[0]) == CUDA_SUCCESS &&
              make_object(description, surface, &first[1]) == CUDA_SUCCESS;
  if (first[0] > first[1]) std::swap(first[0], first[1]);
  destroy(first);
  for (int i = 0; i < 2 && same; ++i) {
    if (api_.set_next_texture) api_.set_next_texture(first[i]);
    same = make_object(description, surface, &again[i]) == CUDA_SUCCESS && again[i] == first[i];
  }
  destroy(again);
  return same;
}

// Tests one object of each context and type.
bool Arrays::driver_reuses_handles() {
  const auto there = all_parts();
  std::pair<ContextState*, bool> tried{};
  return std::all_of(objects_.begin(), objects_.end(), [&](const auto& known) {
    const auto& [context, surface, number] = known.first;
    const auto& description = known.second.of_array;
    if (!description || tried == std::pair(context, surface) ||
        !there.contains(array_of(description->resource)))
      return true;
    tried = {context, surface};
    const ScopedContext scope(contexts_, context);
    return driver_reuses_handle(*description, surface);
  });
}

const char* Arrays::checkpoint_obstacle() {
  if (std::any_of(states_.begin(), states_.end(),
                  [](const auto& known) { return known.second.named_by_reference; })) {
    return "an array bound to a texture or surface reference (cuTexRefSetArray)";
  }
  return driver_reuses_handles()
             ? nullptr
             : "a texture or surface object on an array, whose handle the driver would not assign again";
}

}  // namespace gpupool::worker
