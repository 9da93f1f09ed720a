#include "scheduler/sim/replay.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <queue>
#include <stdexcept>
#include <unordered_set>

namespace gpupool::sim {
namespace {

using placement::Cluster;

// The slowdown relates waiting to the task's run time; for shorter tasks, to this many seconds (bounded
// slowdown).
constexpr double kShortSeconds = 10;
constexpr size_t kCurvePoints = 400;
constexpr double kSecondsOfHour = 3600;
constexpr double kNever = std::numeric_limits<double>::infinity();

struct Ending {
  double at;
  uint32_t task;
  bool operator>(const Ending& other) const { return std::pair(at, task) > std::pair(other.at, other.task); }
};

const char* size_class(const placement::Request& request) {
  if (request.gpus == 0) return "no GPU";
  if (request.gpus > 1) return "several GPUs";
  return request.milli == placement::kWholeGpu ? "one GPU" : "share";
}

Waiting waiting_of(std::vector<double> seconds) {
  Waiting out{.tasks = static_cast<uint32_t>(seconds.size())};
  if (seconds.empty()) return out;
  std::sort(seconds.begin(), seconds.end());
  for (const double one : seconds) out.mean += one / static_cast<double>(seconds.size());
  // Percentile by nearest rank.
  const auto at = [&](double part) {
    return seconds[static_cast<size_t>(std::ceil(part * static_cast<double>(seconds.size()))) - 1];
  };
  out.p50 = at(0.5);
  out.p99 = at(0.99);
  out.most = seconds.back();
  return out;
}

double jain(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  return squares == 0 ? 1 : sum * sum / (static_cast<double>(values.size()) * squares);
}

class Replay {
 public:
  Replay(const Experiment& experiment, double load, uint64_t seed, const MoveOptions& moves, double warm_up)
      : tasks_(*experiment.tasks),
        moves_(moves),
        warm_up_(warm_up),
        mover_(cluster_, moves),
        ends_(tasks_.size()) {
    for (const placement::NodeSpec& node : *experiment.nodes) {
      if (const auto added = cluster_.add(node); !added) throw std::runtime_error(added.error().message);
    }
    placer_ = std::make_unique<placement::Placer>(
        cluster_, placement::Placer::Options{.policy = experiment.policy, .seed = seed});
    for (const Task& task : tasks_) {
      requests_.push_back(in_mode(task.request, experiment.mode));
      arrives_.push_back(static_cast<double>(task.arrives) / load);
    }
    if (experiment.policy == placement::PolicyKind::fgd) placer_->set_workload(requests_);
  }

  Replayed run() {
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < tasks_.size(); ++i) {
      // Tasks that ask for nothing of the cluster, in pool mode those without GPUs, are left out.
      if (placement::Placer::check(requests_[i])) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return arrives_[a] < arrives_[b]; });
    if (order.empty()) return {};
    begin_ = now_ = arrives_[order.front()];
    last_arrival_ = arrives_[order.back()];
    measured_from_ = arrives_[order[static_cast<size_t>(warm_up_ * static_cast<double>(order.size() - 1))]];
    size_t next = 0;
    while (next < order.size() || !running_.empty()) {
      const double arrival = next < order.size() ? arrives_[order[next]] : kNever;
      const double departure = running_.empty() ? kNever : running_.top().at;
      const double move = mover_.next_end().value_or(kNever);
      if (std::min(departure, move) <= arrival) {
        advance(std::min(departure, move));
        depart();
        try_waiting();
      } else {
        advance(arrival);
        arrive(order[next++]);
      }
    }
    if (cluster_.free_milli() != cluster_.total_milli())
      throw std::runtime_error("allocated and free GPU thousandths do not add up");
    return report();
  }

 private:
  void advance(double to) {
    const double until = std::min(to, last_arrival_), from = std::max(now_, measured_from_);
    const double percent = cluster_.total_milli() == 0
                               ? 0
                               : 100 - 100.0 * static_cast<double>(cluster_.free_milli()) /
                                           static_cast<double>(cluster_.total_milli());
    out_.most_allocated = std::max(out_.most_allocated, percent);
    if (until > from) area_ += percent * (until - from);
    if (now_ < measured_from_ && to >= measured_from_) mover_.moved() = {};
    if (now_ <= last_arrival_ && to > last_arrival_) measured_ = mover_.moved();
    if (curve_.empty() || (to - begin_) / kSecondsOfHour > curve_.back().first)
      curve_.emplace_back((now_ - begin_) / kSecondsOfHour, percent);
    now_ = to;
  }

  // Ends the tasks and the moves whose time has come.
  void depart() {
    for (const uint32_t task : mover_.end_moves(now_)) {
      if (moves_.silence == 0) continue;
      ends_[task] += moves_.silence;
      running_.push({ends_[task], task});
    }
    while (!running_.empty() && running_.top().at <= now_) {
      const Ending over = running_.top();
      running_.pop();
      if (over.at == ends_[over.task]) mover_.end(over.task);  // else it stood still and ends later
    }
  }

  void arrive(uint32_t task) {
    const float start = cpu_microseconds();
    placer_->observe(requests_[task]);
    const bool placed = start_now(task);
    times_.push_back(std::max(0.0f, cpu_microseconds() - start));
    if (placed) return;
    if (!placer_->explain(requests_[task]).ever) {
      ++out_.never;
      return;
    }
    waiting_.push_back(task);
    if (moves_.reserve || moves_.defragment) try_waiting();  // it may be the head
  }

  bool start_now(uint32_t task) {
    auto placement = placer_->decide(requests_[task]);
    if (!placement) placement = mover_.place_for(task, requests_[task]);
    if (!placement) return false;
    mover_.start(task, std::move(*placement), now_);
    mover_.forget_head(task);
    ends_[task] = now_ + static_cast<double>(tasks_[task].runs);
    running_.push({ends_[task], task});
    if (arrives_[task] < measured_from_) return true;
    const double waited = now_ - arrives_[task];
    all_.push_back(waited);
    by_size_[size_class(requests_[task])].push_back(waited);
    by_tenant_[tasks_[task].tenant].push_back(waited);
    auto& [sum, count] = slowdown_[tasks_[task].tenant];
    sum += 1 + waited / std::max(static_cast<double>(tasks_[task].runs), kShortSeconds);
    ++count;
    return true;
  }

  void try_waiting() {
    std::unordered_set<placement::Shape, placement::ShapeHash> in_vain;  // did not fit in this round
    bool has_head = !moves_.reserve && !moves_.defragment;
    mover_.release_hold();
    for (auto task = waiting_.begin(); task != waiting_.end();) {
      const placement::Shape shape = cluster_.shape_of(requests_[*task]);
      bool placed = false;
      if (!in_vain.contains(shape) || (!has_head && requests_[*task].gpus > 0)) {
        const float start = cpu_microseconds();
        placed = start_now(*task);
        times_.push_back(std::max(0.0f, cpu_microseconds() - start));
        if (!placed) in_vain.insert(shape);
      }
      if (!placed && requests_[*task].gpus > 0 && !std::exchange(has_head, true))
        mover_.hold_for(*task, requests_[*task], now_);
      task = placed ? waiting_.erase(task) : std::next(task);
    }
  }

  Replayed report() {
    out_.placed = static_cast<uint32_t>(all_.size());
    out_.mean_allocated = last_arrival_ > measured_from_ ? area_ / (last_arrival_ - measured_from_) : 0;
    out_.waiting = waiting_of(all_);
    for (auto& [name, seconds] : by_size_) out_.by_size[name] = waiting_of(seconds);
    for (auto& [name, seconds] : by_tenant_) out_.by_tenant[name] = waiting_of(seconds);
    std::vector<double> means;
    for (const auto& [name, slowdown] : slowdown_) means.push_back(slowdown.first / slowdown.second);
    out_.fairness = jain(means);
    out_.decision = times_of(times_);
    report_moves();
    const size_t step = std::max<size_t>(1, curve_.size() / kCurvePoints);
    for (size_t i = 0; i < curve_.size(); i += step) out_.curve.push_back(curve_[i]);
    return std::move(out_);
  }

  void report_moves() {
    Moved& moved = mover_.moved();
    out_.hours = (last_arrival_ - measured_from_) / kSecondsOfHour;
    out_.defragmented = moves_.defragment;
    out_.moves = moved.moves;
    out_.defragmentations = moved.begun;
    out_.admitted = moved.granted;
    if (out_.hours > 0) {
      out_.moves_per_hour = measured_.moves / out_.hours;
      out_.bytes_per_hour = static_cast<double>(measured_.bytes) / out_.hours;
    }
    out_.search = times_of(moved.search);
  }

  const std::vector<Task>& tasks_;
  const MoveOptions moves_;
  const double warm_up_;
  std::vector<placement::Request> requests_;
  std::vector<double> arrives_;
  Cluster cluster_;
  Mover mover_;
  Moved measured_;  // until the last arrival
  std::unique_ptr<placement::Placer> placer_;
  std::vector<double> ends_;  // of tasks that have started
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> running_;
  std::list<uint32_t> waiting_;
  double begin_ = 0, now_ = 0, measured_from_ = 0, last_arrival_ = 0, area_ = 0;
  std::vector<double> all_;
  std::map<std::string, std::vector<double>> by_size_, by_tenant_;
  std::map<std::string, std::pair<double, double>> slowdown_;
  std::vector<float> times_;
  std::vector<std::pair<double, double>> curve_;
  Replayed out_;
};

}  // namespace

Replayed replay(const Experiment& experiment, double load, uint64_t seed, const MoveOptions& moves,
                double warm_up) {
  return Replay(experiment, load, seed, moves, warm_up).run();
}

}  // namespace gpupool::sim
