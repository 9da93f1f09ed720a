// The part of WorkerPool that hands the sessions over to this process's next program, and takes them over
// from the previous one.
#include <fcntl.h>

#include <algorithm>

#include "common/log/log.h"
#include "server/poold/upgrade/values.h"
#include "server/poold/workers/saved_client.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

void save_breaks(const Breaks& from, upgrade::Breaks& to) {
  to.set_client_leaves(from.client_leaves);
  to.set_abandoned(from.abandoned);
  to.set_wanted_by(from.wanted_by);
  for (const auto& since : from.since) to.add_since(upgrade::to_ns(since));
  to.set_resumed(from.resumed);
  to.set_waited_ms(from.waited.count());
  to.set_resent_bytes(from.resent_bytes);
}

void restore_breaks(const upgrade::Breaks& from, Breaks& to) {
  to.client_leaves = from.client_leaves();
  to.abandoned = from.abandoned();
  to.wanted_by = from.wanted_by();
  for (int link = 0; link < std::min<int>(from.since_size(), Breaks::kLinks); ++link)
    to.since[static_cast<size_t>(link)] = upgrade::steady(from.since(link));
  to.resumed = from.resumed();
  to.waited = milliseconds(from.waited_ms());
  to.resent_bytes = from.resent_bytes();
}

upgrade::Groups message_of(const quota::Partitions::PerGpu& groups) {
  upgrade::Groups message;
  message.mutable_of_gpu()->Add(groups.begin(), groups.end());
  return message;
}

quota::Partitions::PerGpu groups_of(const upgrade::Groups& message) {
  return {message.of_gpu().begin(), message.of_gpu().end()};
}

}  // namespace

void WorkerPool::pause_suspensions() {
  suspensions_.pause();
  for (auto& [client, why] : waiting_.take([](const Client& client) {
         return client.suspended ? std::optional<std::string>("") : std::nullopt;
       }))
    turn_away(std::move(client), {control::HelloReply::BUSY, std::move(why)});
}

void WorkerPool::give_up_waiting() {
  refuse_unserved(waiting_.take_all(), control::HelloReply::BUSY, "poold is being upgraded; try again");
  shares_.close_questions();
  peers_.give_up_waiting();
  suspensions_.give_up_waiting();
}

void WorkerPool::pause() {
  paused_ = true;
  for (auto& [pid, worker] : workers_.all()) {
    if (worker->state == Stage::starting) settings_.processes.kill(pid);
    if (worker->state != Stage::idle) continue;
    worker->close_control();
    worker->state = Stage::starting;  // only idle workers get clients
    worker->failure = "it was ended for an upgrade";
  }
}

void WorkerPool::unpause() {
  paused_ = false;
  start_missing_workers();
  suspensions_.unpause();
}

void WorkerPool::save(const Worker& worker, upgrade::Session& to) const {
  to.set_control_version(worker.control_version);
  to.set_version(worker.version);
  to.set_pid(worker.pid);
  to.set_control(const_cast<Worker&>(worker).socket());
  to.set_output(worker.output->descriptor());
  to.set_page(worker.page->descriptor());
  to.set_account(worker.account_slot->descriptor());
  to.set_account_slot(worker.account_slot->slot());
  to.set_account_is_current(accounts_.is_current(worker.client.tenant, worker.account_slot->descriptor()));
  to.set_cgroup(worker.cgroup);
  to.set_user(worker.user->name);
  to.set_number(worker.session);
  to.set_id(worker.session_id);
  to.set_bulk_token(worker.bulk_token);
  to.set_resume_key(worker.resume_key);
  for (const uint64_t attempt : worker.resume_attempts) to.add_resume_attempts(attempt);
  to.set_resume_timeout_ms(worker.resume_timeout.count());
  to.set_since(upgrade::to_ns(worker.since));
  to.set_started(nanoseconds(worker.started.time_since_epoch()).count());
  to.set_ending(worker.ending);
  to.set_migrated(worker.migrated);
  to.set_failure(worker.failure);
  to.set_unfinished_line(worker.output->unfinished_line());
  server::save(worker.client, *to.mutable_client());
  save_breaks(worker.breaks, *to.mutable_breaks());
  turns_.save(worker.session, to);
  state_changes_.save(worker.session, to);
  memory_.save(worker.session, to);
  migrations_.save(worker.session, to);
  abandoned_.save(worker.session, to);
  image_transfers_.save(worker.session, to);
  dumps_.save(worker.session, to);
}

void WorkerPool::save(upgrade::Pool& to) const {
  to.set_server_id(server_id_);
  to.set_next_user(users_.next());
  to.set_next_session(next_session_);
  to.set_start_failures(start_failures_);
  to.mutable_devices()->mutable_devices()->Add(devices_.begin(), devices_.end());
  to.mutable_devices()->set_driver_version(driver_version_);
  for (const EndedSession& ended : ended_sessions_) {
    upgrade::EndedSession& one = *to.add_ended_sessions();
    one.set_session_id(ended.session_id);
    one.set_tenant(ended.tenant);
    one.set_resume_key(ended.resume_key);
    one.set_reason(ended.reason);
  }
  images_.for_each([&](const wire::ImageDigest& name, uint64_t bytes, int descriptor) {
    upgrade::Image& image = *to.add_images();
    image.set_name(name.data(), name.size());
    image.set_bytes(bytes);
    image.set_descriptor(descriptor);
  });
  const auto assigned = partitions_.partitions().assigned();
  for (const auto& [tenant, groups] : assigned.tenants) {
    upgrade::TenantGroups& one = *to.add_tenants_groups();
    one.set_tenant(tenant);
    *one.mutable_groups() = message_of(groups);
  }
  migrations_.save(to);
  state_changes_.save(to);
  dumps_.save(to);
  suspensions_.save(to);
  workers_.for_each_serving([&](const Worker& worker) {
    upgrade::Session& session = *to.add_sessions();
    save(worker, session);
    if (const auto its = assigned.sessions.find(worker.session); its != assigned.sessions.end())
      *session.mutable_groups() = message_of(its->second.groups);
  });
}

Result<std::shared_ptr<Worker>> WorkerPool::restore_worker(const upgrade::Session& from) {
  auto page = quota::SharedPage<quota::SessionPage>::open(from.page());
  if (!page) return page.error();
  auto account_slot = accounts_.restore(from.client().tenant(), from.account(), from.account_slot(),
                                        from.account_is_current());
  if (!account_slot) return account_slot.error();
  auto worker = std::make_shared<Worker>(context_, StartedWorker{.pid = static_cast<pid_t>(from.pid()),
                                                                 .control = from.control(),
                                                                 .output = from.output(),
                                                                 .page = std::move(*page)});
  worker->account_slot = std::move(*account_slot);
  worker->control_version = from.control_version();
  worker->version = from.version();
  worker->inherited = true;
  worker->cgroup = from.cgroup();
  worker->user = users_.restore(from.user());
  worker->state = Stage::serving;
  worker->since = upgrade::steady(from.since());
  worker->session = from.number();
  worker->session_id = from.id();
  worker->bulk_token = from.bulk_token();
  worker->resume_key = from.resume_key();
  std::copy_n(from.resume_attempts().begin(),
              std::min<size_t>(static_cast<size_t>(from.resume_attempts_size()), Breaks::kLinks),
              worker->resume_attempts.begin());
  worker->resume_timeout = milliseconds(from.resume_timeout_ms());
  worker->client = server::restored(from.client());
  worker->started = std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(nanoseconds(from.started())));
  worker->ending = from.ending();
  worker->migrated = from.migrated();
  worker->failure = from.failure();
  restore_breaks(from.breaks(), worker->breaks);
  worker->output->set_session(worker->session);
  worker->output->restore(from.unfinished_line());
  return worker;
}

void WorkerPool::restore_parts(const std::shared_ptr<Worker>& worker, const upgrade::Session& from,
                               const Migrated& migrated) {
  const uint64_t session = worker->session;
  turns_.restore(session, worker->client.tenant, from, worker->page);
  state_changes_.restore(session, from);
  memory_.restore(session, from);
  const auto told = [this, migrated, weak = std::weak_ptr(worker),
                     to = from.migration().address()](const Result<Migrations::Outcome>& outcome) {
    if (const auto its = weak.lock()) migrated(view_of(*its), to, outcome);
  };
  migrations_.restore(
      session, from,
      from.migration().to_file() ? suspensions_.answer_of(session) : Migrations::Answered(told));
  abandoned_.restore(session, from);
  image_transfers_.restore(session, from);
  dumps_.restore(session, from);
}

Result<void> WorkerPool::restore(const upgrade::Pool& from, const Migrated& migrated) {
  server_id_ = from.server_id();
  users_.set_next(from.next_user());
  next_session_ = from.next_session();
  start_failures_ = from.start_failures();
  for (const upgrade::EndedSession& ended : from.ended_sessions())
    ended_sessions_.push_back({ended.session_id(), ended.tenant(), ended.resume_key(), ended.reason()});
  for (const upgrade::Image& image : from.images()) {
    wire::ImageDigest name{};
    upgrade::copy_bytes(image.name(), name);
    (void)images_.add(name, image.bytes(), image.descriptor(), 0);  // dropped if it exceeds a new limit
  }
  quota::Partitions::Assigned assigned;
  for (const upgrade::TenantGroups& one : from.tenants_groups())
    assigned.tenants[one.tenant()] = groups_of(one.groups());
  for (const upgrade::Session& session : from.sessions()) {
    if (session.has_groups())
      assigned.sessions[session.number()] = {session.client().tenant(), groups_of(session.groups())};
  }
  partitions_.restore(std::move(assigned));
  migrations_.restore(from);
  state_changes_.restore(from);
  dumps_.restore(from);
  suspensions_.restore(from);
  for (const upgrade::Session& session : from.sessions()) {
    auto worker = restore_worker(session);
    if (!worker) return worker.error();
    workers_.all().emplace((*worker)->pid, *worker);
    restore_parts(*worker, session, migrated);
  }
  accounts_.end_restoring();
  for (const auto& [name, tenant] : tenants_.all()) (void)accounts_.set(name, tenant.quota);
  turns_.end_restoring();
  for (const auto& [pid, worker] : workers_.all()) {
    watch_output(worker);
    watch_control(worker);
    if (!worker->failure.empty()) settings_.processes.kill(pid);
    if (!worker->ending.empty()) kill_after(worker, kEndGrace);
  }
  watch_child_exits();
  abandoned_.update();
  reap();  // those that ended meanwhile; starts workers
  return {};
}

}  // namespace gpupool::server
