#include "server/worker/migration/history.h"

#include <algorithm>
#include <utility>

namespace gpupool::worker {
namespace {

uint64_t bytes_of(const History::Entry& entry) {
  return sizeof entry + entry.body.size() + entry.reply.size() +
         (entry.image ? entry.image->bytes().size() : 0);
}

}  // namespace

void History::note(const wire::CommandHeader& header, std::span<const std::byte> body,
                   std::span<const std::byte> reply, HistoryEffect effect) {
  auto image = std::exchange(image_, nullptr);
  if (!on_ || gave_up_) return;
  if (effect.obstacle && effect.makes.empty()) lasting_obstacle_ = effect.obstacle;
  if (!effect.makes.empty() && exists(effect.makes.front())) {  // adds to the object, as graph_nodes may
    effect.configures = effect.makes.front();
    effect.setting = "#" + std::to_string(last_);
    effect.makes.erase(effect.makes.begin());
  }
  if ((effect.configures & kMapped) != 0) {
    const auto first = mapped_.lower_bound(effect.configures);
    effect.configures = first == mapped_.end() ? 0 : *first;
  }
  std::erase(effect.uses, effect.configures);  // the object may go without waiting for its settings
  Entry entry{header, {body.begin(), body.end()}, {}, std::move(effect), std::move(image)};
  if (entry.effect.checks_reply) entry.reply.assign(reply.begin(), reply.end());
  if (observer_) observer_(entry);
  for (const uint64_t object : entry.effect.destroys) destroy(object, &entry);
  if (const auto range = entry.effect.unmaps) {
    const std::vector<uint64_t> keys(mapped_.lower_bound(mapped_key(range->first)),
                                     mapped_.lower_bound(mapped_key(range->second)));
    for (const uint64_t key : keys) destroy(key, &entry);
  }
  if (entry.effect.forgets_setting) return replace_setting(entry.effect, std::nullopt);
  if (entry.effect.makes.empty() && !exists(entry.effect.configures)) return;
  add(std::move(entry));
  if (bytes_ > most_bytes_) give_up();
}

void History::give_up() {
  gave_up_ = true;
  lasting_obstacle_ = "too many bytes of loaded images and other objects";
  entries_.clear();
  objects_.clear();
  settings_.clear();
  mapped_.clear();
  recorded_.clear();
  bytes_ = 0;
}

void History::add(Entry entry) {
  const uint64_t number = ++last_;
  const HistoryEffect& effect = entry.effect;
  for (const uint64_t key : effect.makes) make(key, number);
  for (const uint64_t key : effect.parts) make(key, number);
  own(effect.makes.empty() ? effect.configures : effect.makes.front(), effect.parts);
  own(effect.owner, effect.makes);
  for (const auto* const named : {&effect.uses, &effect.parts, &effect.takes_over}) {
    for (const uint64_t key : *named) {
      if (const auto used = objects_.find(key); used != objects_.end()) ++used->second.users;
    }
  }
  if (effect.configures != 0) {
    replace_setting(effect, number);
    objects_[effect.configures].configured_by.push_back(number);
  }
  const std::vector<uint64_t> taken_over = effect.takes_over;
  bytes_ += bytes_of(entry);
  entries_.emplace(number, std::move(entry));
  for (const uint64_t key : taken_over) destroy(key, nullptr);
}

void History::make(uint64_t key, uint64_t number) {
  if (exists(key)) destroy(key, nullptr);
  Object& object = objects_[key];
  object.made_by.push_back(number);
  object.gone = false;
  if ((key & kMapped) != 0) mapped_.insert(key);
}

void History::own(uint64_t owner, std::span<const uint64_t> objects) {
  const auto found = objects_.find(owner);
  if (found != objects_.end())
    found->second.owns.insert(found->second.owns.end(), objects.begin(), objects.end());
}

void History::replace_setting(const HistoryEffect& effect, std::optional<uint64_t> number) {
  const auto key = std::pair(effect.configures, effect.setting);
  if (const auto earlier = settings_.find(key); earlier != settings_.end()) {
    const uint64_t old = earlier->second;
    settings_.erase(earlier);
    if (const auto object = objects_.find(effect.configures); object != objects_.end())
      std::erase(object->second.configured_by, old);
    remove(old);
  }
  if (number) settings_[key] = *number;
}

void History::remove(uint64_t number) {
  const auto place = entries_.find(number);
  if (place == entries_.end()) return;
  const Entry entry = std::move(place->second);
  entries_.erase(place);
  bytes_ -= bytes_of(entry);
  for (const auto* const named : {&entry.effect.uses, &entry.effect.parts, &entry.effect.takes_over}) {
    for (const uint64_t key : *named) {
      const auto used = objects_.find(key);
      if (used == objects_.end() || used->second.users == 0) continue;
      --used->second.users;
      remove_if_unused(key);
    }
  }
}

void History::destroy(uint64_t key, const Entry* command) {
  const auto found = objects_.find(key);
  if (found == objects_.end() || found->second.gone) return;
  recorded_.erase(key);
  mapped_.erase(key);
  found->second.gone = true;
  // The objects that it owns are destroyed with it, without commands of their own.
  for (const uint64_t owned : std::exchange(found->second.owns, {})) destroy(owned, nullptr);
  if (const auto still = objects_.find(key); command && still != objects_.end() && still->second.users != 0) {
    Entry destroyer = *command;
    destroyer.effect = {};
    still->second.destroyed_by.push_back(++last_);
    bytes_ += bytes_of(destroyer);
    entries_.emplace(last_, std::move(destroyer));
  }
  remove_if_unused(key);
}

void History::remove_if_unused(uint64_t key) {
  const auto found = objects_.find(key);
  if (found == objects_.end() || !found->second.gone || found->second.users != 0) return;
  const Object object = std::move(found->second);
  objects_.erase(found);
  for (const uint64_t number : object.configured_by) {
    if (const auto entry = entries_.find(number); entry != entries_.end())
      settings_.erase({key, entry->second.effect.setting});
    remove(number);
  }
  for (const uint64_t number : object.destroyed_by) remove(number);
  for (const uint64_t number : object.made_by) {
    const auto maker = entries_.find(number);
    if (maker == entries_.end()) continue;
    const auto& makes = maker->second.effect.makes;  // a command may have made several objects
    if (std::none_of(makes.begin(), makes.end(), [this](uint64_t other) { return objects_.contains(other); }))
      remove(number);
  }
}

bool History::exists(uint64_t key) const {
  const auto found = objects_.find(key);
  return found != objects_.end() && !found->second.gone;
}

uint64_t History::context_of(uint64_t key) const {
  const auto found = objects_.find(key);
  const auto maker = found == objects_.end() || found->second.made_by.empty()
                         ? entries_.end()
                         : entries_.find(found->second.made_by.back());
  return maker == entries_.end() ? 0 : maker->second.header.context;
}

void History::for_each(const std::function<void(const Entry&)>& visit) const {
  for (const auto& [number, entry] : entries_) visit(entry);
}

const char* History::obstacle() const {
  if (lasting_obstacle_) return lasting_obstacle_;
  for (const auto& [number, entry] : entries_) {
    if (entry.effect.obstacle) return entry.effect.obstacle;
  }
  return nullptr;
}

}  // namespace gpupool::worker
