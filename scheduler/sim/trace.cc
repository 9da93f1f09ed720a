#include "scheduler/sim/trace.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_set>

namespace gpupool::sim {
namespace {

using placement::kWholeGpu;

constexpr int64_t kMib = 1 << 20;
constexpr int64_t kMaxMib = int64_t{1} << 40;
constexpr int64_t kMaxCpuMilli = int64_t{1} << 40;
constexpr int64_t kMaxSeconds = int64_t{1} << 40;

// Reads the fields of a row and remembers the first failure, so that callers check once per row.
class Row {
 public:
  Row(const Csv& csv, size_t row) : csv_(csv), row_(row) {}
  int64_t number(int column, int64_t least, int64_t most) {
    return keep(csv_.number(row_, column, least, most));
  }
  int64_t number_or(int column, int64_t otherwise, int64_t most) {
    return keep(csv_.number_or(row_, column, otherwise, 0, most));
  }
  void refuse(int column, const std::string& what) {
    if (!error_) error_ = csv_.error_at(row_, column, what);
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  int64_t keep(const Result<int64_t>& read) {
    if (read) return *read;
    if (!error_) error_ = read.error();
    return 0;
  }

  const Csv& csv_;
  size_t row_;
  std::optional<Error> error_;
};

// Returns the numbers of the named columns, or an error for the first missing one.
template <size_t N>
Result<std::array<int, N>> needed(const Csv& csv, const std::array<const char*, N>& names) {
  std::array<int, N> numbers{};
  for (size_t i = 0; i < N; ++i) {
    const Result<int> number = csv.needed_column(names[i]);
    if (!number) return number.error();
    numbers[i] = *number;
  }
  return numbers;
}

}  // namespace

Result<std::vector<placement::NodeSpec>> nodes_of(const Csv& csv) {
  const auto columns = needed<5>(csv, {"sn", "cpu_milli", "memory_mib", "gpu", "model"});
  if (!columns) return columns.error();
  const auto [name, cpu, memory, gpus, model] = *columns;
  const int zone = csv.column("zone"), rack = csv.column("rack"), gpu_memory = csv.column("gpu_memory_mib");
  std::vector<placement::NodeSpec> nodes;
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < csv.rows(); ++i) {
    Row row(csv, i);
    placement::NodeSpec node;
    node.name = csv.text(i, name);
    node.cpu_milli = row.number(cpu, 0, kMaxCpuMilli);
    node.host_memory = row.number(memory, 0, kMaxMib) * kMib;
    node.gpus = static_cast<int>(row.number(gpus, 0, placement::kMaxGpusPerNode));
    node.model = csv.text(i, model);
    node.zone = csv.text(i, zone);
    node.rack = csv.text(i, rack);
    node.gpu_memory = static_cast<uint64_t>(row.number_or(gpu_memory, 0, kMaxMib) * kMib);
    if (node.name.empty()) row.refuse(name, "is empty");
    if (!names.insert(node.name).second) row.refuse(name, "'" + node.name + "' is a duplicate");
    if (node.model.find('|') != std::string::npos)
      row.refuse(model, "contains '|', which separates models in tasks");
    if (row.error()) return *row.error();
    nodes.push_back(std::move(node));
  }
  return nodes;
}

Result<std::vector<Task>> tasks_of(const Csv& csv) {
  const auto columns = needed<5>(csv, {"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"});
  if (!columns) return columns.error();
  const auto [name, cpu, memory, gpus, milli] = *columns;
  const int spec = csv.column("gpu_spec"), gpu_memory = csv.column("gpu_memory_mib");
  const int tenant = csv.column("tenant") >= 0 ? csv.column("tenant") : csv.column("qos");
  const int created = csv.column("creation_time"), deleted = csv.column("deletion_time"),
            scheduled = csv.column("scheduled_time");
  std::vector<Task> tasks;
  for (size_t i = 0; i < csv.rows(); ++i) {
    Row row(csv, i);
    Task task;
    placement::Request& request = task.request;
    task.name = csv.text(i, name);
    task.tenant = csv.text(i, tenant);
    request.cpu_milli = row.number(cpu, 0, kMaxCpuMilli);
    request.host_memory = row.number(memory, 0, kMaxMib) * kMib;
    request.gpus = static_cast<int>(row.number(gpus, 0, 0xffff));
    request.milli = request.gpus == 0 ? 0 : kWholeGpu;  // several GPUs are whole ones
    if (request.gpus == 1) request.milli = static_cast<int>(row.number(milli, 1, kWholeGpu));
    request.memory_bytes =
        request.gpus == 0 ? 0 : static_cast<uint64_t>(row.number_or(gpu_memory, 0, kMaxMib) * kMib);
    std::string models = csv.text(i, spec);
    for (size_t begin = 0; begin < models.size();) {
      const size_t end = std::min(models.find('|', begin), models.size());
      if (end == begin) row.refuse(spec, "names an empty model");
      request.models.push_back(models.substr(begin, end - begin));
      begin = end + 1;
    }
    task.arrives = row.number_or(created, 0, kMaxSeconds);
    const int64_t starts = row.number_or(scheduled, task.arrives, kMaxSeconds);
    const int64_t ends = row.number_or(deleted, starts, kMaxSeconds);
    if (ends < starts) row.refuse(deleted, "is before the task's start");
    task.runs = ends - starts;
    if (row.error()) return *row.error();
    tasks.push_back(std::move(task));
  }
  return tasks;
}

placement::Request in_mode(const placement::Request& request, Mode mode) {
  placement::Request out = request;
  if (mode == Mode::local) return out;
  out.cpu_milli = out.host_memory = 0;
  if (mode == Mode::pool) out.spread = placement::Distance::any;
  return out;
}

const char* name_of(Mode mode) {
  return mode == Mode::local ? "local" : mode == Mode::pool ? "pool" : "one-host";
}

std::optional<Mode> mode_named(const std::string& name) {
  for (const Mode mode : {Mode::local, Mode::pool, Mode::one_host}) {
    if (name == name_of(mode)) return mode;
  }
  return std::nullopt;
}

}  // namespace gpupool::sim
