// Objects charged to peers (peer.h), and the choice of one to drop when there are too many: the oldest of the
// peer that has most. The choice takes time proportional to the number of peers, not of objects. One thread;
// never fails.
#pragma once
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <string>
#include <utility>

namespace gpupool {

template <class Thing>
class PerPeer {
  struct Kept {
    Thing thing;
    uint64_t number;  // increasing: the oldest has the lowest
  };
  using Peers = std::map<std::string, std::list<Kept>>;  // no list is empty; oldest first

 public:
  // Position of an object. Valid until the object is removed.
  struct Position {
    typename Peers::iterator peer;
    typename std::list<Kept>::iterator thing;
  };

  Position add(const std::string& peer, Thing thing) {
    const auto its = peers_.try_emplace(peer).first;
    ++size_;
    return {its, its->second.insert(its->second.end(), {std::move(thing), next_++})};
  }
  void remove(const Position& position) {
    position.peer->second.erase(position.thing);
    if (position.peer->second.empty()) peers_.erase(position.peer);
    --size_;
  }
  size_t size() const { return size_; }
  // Returns the oldest object of the peer that has most; if several peers have most, the oldest of theirs.
  // Counts one more object for the peer `newcomer` if it has any. Requires size() > 0.
  const Thing& oldest_of_busiest_peer(const std::string& newcomer) const {
    const auto count = [&, own = peers_.find(newcomer)](auto peer) {
      return peer->second.size() + (peer == own ? 1 : 0);
    };
    auto chosen = peers_.begin();
    for (auto peer = std::next(chosen); peer != peers_.end(); ++peer) {
      const size_t most = count(chosen), its = count(peer);
      if (its > most || (its == most && peer->second.front().number < chosen->second.front().number))
        chosen = peer;
    }
    return chosen->second.front().thing;
  }

 private:
  Peers peers_;
  size_t size_ = 0;
  uint64_t next_ = 0;
};

}  // namespace gpupool
