#include "tests/chaos/jobs.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "protocol/lease/token.h"
#include "tests/chaos/machines.h"
#include "tests/support/poold_process.h"

namespace gpupool::testing {
namespace {

namespace fs = std::filesystem;

// Time after the end of a fault in which it still excuses failures, in ms.
constexpr int64_t kAftermath = 2'000;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Copies the lease file before anything else can happen to it, names its place for later tokens, and executes
// the program.
constexpr const char* kKeepTokens =
    R"(f=${GPUPOOL#lease:}; ln -s "$f" "$0.live" && cp "$f" "$0.new" && mv "$0.new" "$0" && exec "$@")";

}  // namespace

void FaultLog::end(const std::string& host, int64_t at) {
  for (Span& span : spans_) {
    if (span.host == host && !span.to) span.to = at;
  }
}

bool FaultLog::affects_host(const std::string& host, int64_t from, int64_t to) const {
  return std::any_of(spans_.begin(), spans_.end(), [&](const Span& span) {
    return span.host == host && span.from <= to && (!span.to || *span.to + kAftermath >= from);
  });
}

JobSpec random_job(std::mt19937_64& random, const std::string& program) {
  const auto one_of = [&](std::initializer_list<const char*> words) {
    return std::string(*(words.begin() + random() % words.size()));
  };
  JobSpec spec;
  const auto kind = random() % 10;
  if (kind < 4) {
    spec.options = {"--gpus",    "1",
                    "--compute", one_of({"10", "25", "33.3", "50", "70"}),
                    "--memory",  one_of({"16MiB", "24MiB", "40MiB"})};
  } else if (kind < 6) {
    spec.options = {"--gpus", "1"};
  } else if (kind < 8) {
    spec.options = {"--gpus", "2", "--compute", one_of({"30", "50", "100"})};
    if (random() % 2 == 0) spec.options.push_back("--one-host");
  } else {
    spec.options = {"--gpus", one_of({"3", "4"}), "--compute", one_of({"40", "100"})};
  }
  if (random() % 6 == 0)
    spec.options.insert(spec.options.end(), {"--priority", "low"}), spec.may_be_preempted = true;
  if (random() % 3 == 0) {
    spec.program = {"sleep", one_of({"0.2", "1", "3"})};
  } else {
    const bool is_long = random() % 10 == 0;
    spec.program = {program,
                    "leased_work",
                    is_long ? "250" : std::to_string(3 + random() % 40),
                    is_long ? "60" : "30",
                    std::to_string(random() % 1'000'000),
                    "50"};
  }
  return spec;
}

Jobs::Job& Jobs::start(const Host& client, const JobSpec& spec) {
  auto job = std::make_unique<Job>();
  job->number = ++started_;
  job->client = &client;
  job->may_be_preempted = spec.may_be_preempted;
  job->folder = folder_ + "/job" + std::to_string(job->number);
  fs::create_directory(job->folder);
  std::vector<std::string> words{program_path("pool-run"), "--server", url_};
  words.insert(words.end(), spec.options.begin(), spec.options.end());
  words.insert(words.end(), {"--", "sh", "-c", kKeepTokens, job->folder + "/tokens"});
  words.insert(words.end(), spec.program.begin(), spec.program.end());
  for (const auto* part : {&spec.options, &spec.program}) {
    for (const std::string& word : *part)
      job->text += (job->text.empty() ? "" : " ") + word.substr(word.rfind('/') + 1);
  }
  job->started = time_of_day();
  job->process = client.start(words, {{"XDG_RUNTIME_DIR", job->folder}});
  running_.push_back(std::move(job));
  return *running_.back();
}

// pool-lease writes the file again when tokens are renewed and when the lease moves.
void Jobs::read_tokens(Job& job) {
  std::string content = content_of(job.folder + (job.lease.empty() ? "/tokens" : "/tokens.live"));
  if (content.empty() || content == job.tokens) return;
  job.tokens = std::move(content);
  std::istringstream file(job.tokens);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    const auto token = lease::parse_token(line.substr(line.rfind(' ') + 1));
    lease::Lease lease;
    if (!token || !lease.ParseFromString(token->lease())) continue;
    job.lease = lease::hexadecimal(lease.id());
    job.nodes.insert(lease.node());
    ledger_.token(lease);
  }
}

void Jobs::poll() {
  for (auto& job : running_) {
    const bool over = job->process->wait(std::chrono::milliseconds(0)) >= 0;
    read_tokens(*job);
    if (!over) continue;
    job->status = job->process->wait();
    job->ended = time_of_day();
    ended_.push_back(std::move(job));
  }
  std::erase(running_, nullptr);
}

std::optional<std::string> Jobs::fault_of(const Job& job, const FaultLog& faults) {
  for (const char* const never : {"WRONG RESULT", "MEMORY MISSING", "Segmentation", "terminate called"}) {
    if (has(job.output, never)) return "the output shows a wrong result or a crash";
  }
  if (job.status == 0) return ++tally_.right, std::nullopt;
  bool excused = job.killed || faults.affects_host(job.client->name(), job.started, job.ended);
  for (const std::string& node : job.nodes)
    excused = excused || faults.affects_host(node, job.started, job.ended);
  for (const auto& session : ledger_.sessions())
    excused = excused || (session.lease == job.lease && faults.affects_worker(session.node, session.worker));
  // A client that requests a lease without a scheduler gives up after ten seconds.
  excused = excused || (has(job.output, "cannot reach any scheduler") &&
                        faults.affects_host(kSchedulers, job.started, job.ended));
  if (excused) return ++tally_.excused, std::nullopt;
  if (job.may_be_preempted && has(job.output, "with a higher priority"))
    return ++tally_.preempted, std::nullopt;
  return "no fault explains this";
}

std::vector<std::string> Jobs::judge(const FaultLog& faults) {
  std::vector<std::string> wrong;
  left_behind_.clear();
  for (auto& job : ended_) {
    job->process->await_end_of_output();  // pool-lease has it open as well
    job->output = job->process->output();
    if (const auto fault = fault_of(*job, faults)) {
      std::ostringstream text;
      text << "job " << job->number << " (" << job->text << ") on " << job->client->name() << " ended with "
           << job->status << ", and " << *fault << "; it ran from " << job->started << " to " << job->ended
           << " with lease " << job->lease << " on";
      for (const std::string& node : job->nodes) text << " " << node;
      wrong.push_back(text.str() + ":\n" + job->output);
    }
    for (const auto& entry : fs::directory_iterator(job->folder)) {
      if (!entry.path().filename().string().starts_with("tokens") && !job->may_leak)
        left_behind_.push_back(entry.path());
    }
    fs::remove_all(job->folder);
  }
  ended_.clear();
  return wrong;
}

void Jobs::may_leak_on(const Host& host) {
  for (const auto* jobs : {&running_, &ended_}) {
    for (const auto& job : *jobs) job->may_leak = job->may_leak || job->client == &host;
  }
}

Jobs::Job* Jobs::of_process(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  const std::string environment{std::istreambuf_iterator<char>(file), {}};
  for (const auto& job : running_) {
    if (has(environment, "XDG_RUNTIME_DIR=" + job->folder + std::string(1, '\0'))) return job.get();
  }
  return nullptr;
}

}  // namespace gpupool::testing
