// The commands that made the session's present objects and their settings, in the order of their execution.
// Executed by another worker they make the same objects under the same handles (docs/adr/0037-migration.md).
//
// A command leaves the history when all objects that it made are gone, or when a later command replaces its
// setting. The maker of a destroyed object stays, with the command that destroyed it, while other commands
// name the object: a graph may use an event that the program has destroyed.
//
// Memory that the client maps (map_memory) is not in the history; DeviceMemory knows it. Executor's thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/wire/frame.h"
#include "server/worker/session/command_order.h"

namespace gpupool::worker {

// The bytes of a loaded image, as the client has sent them.
class KeptImage {
 public:
  virtual ~KeptImage() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

// The effect of a command on the history (history_rules.h). Keys are the client's handles, or numbers with
// the highest bit set for objects without a handle.
struct HistoryEffect {
  std::vector<uint64_t> makes;       // objects that exist from now on; one that exists is added to
  std::vector<uint64_t> parts;       // objects that exist as parts of makes.front()
  std::vector<uint64_t> uses;        // other objects that the command names
  std::vector<uint64_t> takes_over;  // objects that are gone, but needed while this command is
  std::vector<uint64_t> destroys;    // objects that are gone
  // Mapped memory that is gone: addresses from `first` to before `second`.
  std::optional<std::pair<uint64_t, uint64_t>> unmaps;
  uint64_t owner = 0;  // object with which the objects in `makes` are destroyed; 0: none
  // Object that the command configures, and which of its settings. Replaces the earlier command of this
  // setting, and is removed with the object. For mapped memory: the address; the first mapping from there on.
  uint64_t configures = 0;
  std::string setting;
  bool forgets_setting = false;  // only removes the earlier command
  bool checks_reply = false;     // the program has seen the reply: it must be the same again
  bool names_memory = false;     // the command needs memory that is mapped now, perhaps by later commands
  const char* obstacle =
      nullptr;  // what cannot migrate, while the objects in `makes` exist; without any: for good
};

class History {
 public:
  struct Entry {
    wire::CommandHeader header;
    std::vector<std::byte> body, reply;
    HistoryEffect effect;
    std::shared_ptr<const KeptImage> image;  // of a command that loads or links it
  };

  // A history that is off records nothing. One that exceeds `most_bytes`, with its images, forgets all of it,
  // and the session cannot migrate any more.
  void turn_on(uint64_t most_bytes = UINT64_MAX) {
    on_ = true;
    most_bytes_ = most_bytes;
  }
  bool on() const { return on_; }

  // Records a command that was executed successfully.
  void note(const wire::CommandHeader& header, std::span<const std::byte> body,
            std::span<const std::byte> reply, HistoryEffect effect);
  // Shows each command to `observer` before it is recorded; null: to nobody.
  void observe(std::function<void(const Entry&)> observer) { observer_ = std::move(observer); }
  // The image that the command loads or links that is being executed.
  void keep_image(std::shared_ptr<const KeptImage> image) { image_ = std::move(image); }
  // Notes that an event was recorded. Its timestamps do not migrate.
  void note_record(uint64_t event) {
    if (on_ && exists(event)) recorded_.insert(event);
  }
  // The events that were recorded and still exist.
  const std::set<uint64_t>& recorded() const { return recorded_; }
  // The context that was current when the object was made; 0: none or unknown.
  uint64_t context_of(uint64_t object) const;
  // Removes the objects, and those that they own. `command`: the one that destroyed them.
  void destroy(uint64_t object, const Entry* command);
  bool exists(uint64_t object) const;
  // All commands, in order.
  void for_each(const std::function<void(const Entry&)>& visit) const;
  // The key of memory that is mapped at an address of the session's range.
  static uint64_t mapped_key(uint64_t address) { return kMapped | address; }
  // Names what prevents the session from migrating; null: nothing does.
  const char* obstacle() const;
  size_t size() const { return entries_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  static constexpr uint64_t kMapped = uint64_t{1} << 63;
  struct Object {
    std::vector<uint64_t> made_by;        // numbers of entries; several if a number is used again
    std::vector<uint64_t> configured_by;  // likewise
    std::vector<uint64_t> destroyed_by;
    std::vector<uint64_t> owns;  // objects
    size_t users = 0;            // entries that name the object without making or destroying it
    bool gone = false;
  };

  void add(Entry entry);
  void give_up();
  void make(uint64_t object, uint64_t number);
  void own(uint64_t owner, std::span<const uint64_t> objects);
  void remove(uint64_t number);
  void remove_if_unused(uint64_t object);
  void replace_setting(const HistoryEffect& effect, std::optional<uint64_t> number);

  bool on_ = false;
  std::map<uint64_t, Entry> entries_;
  std::unordered_map<uint64_t, Object> objects_;
  std::map<std::pair<uint64_t, std::string>, uint64_t> settings_;  // entry of a setting
  std::set<uint64_t> mapped_;                                      // keys of mapped memory
  std::set<uint64_t> recorded_;
  std::shared_ptr<const KeptImage> image_;
  std::function<void(const Entry&)> observer_;
  const char* lasting_obstacle_ = nullptr;
  bool gave_up_ = false;
  uint64_t last_ = 0;
  uint64_t bytes_ = 0, most_bytes_ = UINT64_MAX;
};

}  // namespace gpupool::worker
