#include "tests/fuzz/fake_workers.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "protocol/control/hello.pb.h"
#include "server/handover/sealed_file.h"
#include "tests/fuzz/require.h"

namespace gpupool::fuzz {
namespace {

using server::ControlKind;
using server::ControlMessage;
namespace packet = server::packet;

constexpr pid_t kFirstPid = 2'000'000'000;  // above Linux's largest process id

void close_if_open(int& descriptor) {
  if (descriptor >= 0) ::close(std::exchange(descriptor, -1));
}

// Session pages are reused: creating a memory file takes longer than most inputs.
std::vector<std::shared_ptr<quota::SharedPage<quota::SessionPage>>>& idle_pages() {
  static auto* const pages = new std::vector<std::shared_ptr<quota::SharedPage<quota::SessionPage>>>;
  return *pages;
}

// True for messages that come with a descriptor.
bool has_descriptor(const ControlMessage& message) {
  switch (message.kind) {
    case ControlKind::session:
    case ControlKind::bulk:
    case ControlKind::resume:
    case ControlKind::account:
    case ControlKind::code:
    case ControlKind::cache_folder:
    case ControlKind::image_found:
    case ControlKind::image_space:
    case ControlKind::share_wanted:
    case ControlKind::peer_found: return true;
    case ControlKind::share_found: return message.body<packet::ShareFound>().is_memory != 0;
    default: return false;
  }
}

}  // namespace

FakeWorkers::~FakeWorkers() {
  for (const auto& worker : workers_) {
    if (!worker->ended()) end(*worker, SIGKILL);
    // Other holders of the page keep it no longer than the pool.
    std::memset(static_cast<void*>(&**worker->page), 0, sizeof(quota::SessionPage));
    idle_pages().push_back(std::move(worker->page));
  }
}

server::WorkerProcesses FakeWorkers::processes() {
  return {.start = [this](const server::WorkerProgram& program) { return start(program); },
          .kill =
              [this](pid_t pid) {
                for (const auto& worker : workers_) {
                  if (worker->pid == pid && !worker->ended() && !immortal) end(*worker, SIGKILL);
                }
              },
          .has_ended =
              [this](pid_t pid, int* wait_status) {
                for (const auto& worker : workers_) {
                  if (worker->pid != pid || !worker->ended()) continue;
                  require(!std::exchange(worker->waited_for, true));
                  *wait_status = worker->wait_status;
                  return true;
                }
                return false;
              }};
}

Result<server::StartedWorker> FakeWorkers::start(const server::WorkerProgram&) {
  if (!starts) return Error{ErrorCode::unavailable, "cannot start it"};
  int control[2], output[2];
  require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, control) == 0);
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, output) == 0);
  auto worker = std::make_unique<FakeWorker>();
  worker->pid = kFirstPid + static_cast<pid_t>(workers_.size());
  worker->control = control[1];
  worker->output = output[1];
  if (idle_pages().empty()) {
    auto page = quota::SharedPage<quota::SessionPage>::create("fuzz");
    require(page.ok());
    worker->page = std::move(*page);
  } else {
    worker->page = std::move(idle_pages().back());
    idle_pages().pop_back();
  }
  workers_.push_back(std::move(worker));
  return server::StartedWorker{
      .pid = workers_.back()->pid, .control = control[0], .output = output[0], .page = workers_.back()->page};
}

void FakeWorkers::end(FakeWorker& worker, int status) {
  worker.wait_status = status;
  close_if_open(worker.control);
  close_if_open(worker.output);
  close_if_open(worker.image_space);
  ::raise(SIGCHLD);
}

void FakeWorkers::send(FakeWorker& worker, ControlKind kind, std::span<const std::byte> body,
                       const std::string& payload, int descriptor) {
  if (worker.ended()) return;
  if (packet::ShareWanted wanted; kind == ControlKind::share_wanted && body.size() == sizeof wanted) {
    std::memcpy(&wanted, body.data(), sizeof wanted);
    worker.share_requests.insert(wanted.request);
  }
  if (packet::Reclaim wanted; kind == ControlKind::reclaim && body.size() == sizeof wanted) {
    std::memcpy(&wanted, body.data(), sizeof wanted);
    worker.reclaims.insert(wanted.question);
  }
  static_cast<void>(server::send_packet(worker.control, kind, body, payload, descriptor));
}

void FakeWorkers::send_raw(FakeWorker& worker, const std::string& bytes) {
  if (!worker.ended())
    static_cast<void>(::send(worker.control, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

void FakeWorkers::say_ready(FakeWorker& worker) {
  static const std::string devices = [] {
    control::Devices said;
    said.set_driver_version(13000);
    for (int i = 0; i < 2; ++i) {
      control::Device& device = *said.add_devices();
      device.set_name("GPU");
      device.set_uuid(std::string(16, static_cast<char>('a' + i)));
      device.set_total_bytes(uint64_t{8} << 30);
      if (i != 0) continue;
      device.set_partition_groups(4);
      device.set_group_multiprocessors(2);
      device.set_multiprocessors(9);
    }
    return said.SerializeAsString();
  }();
  send<ControlKind::ready>(worker, {}, devices);
}

void FakeWorkers::take(FakeWorker& worker) {
  while (!worker.ended()) {
    ControlMessage message;
    {
      auto received = server::receive_control(worker.control);
      if (!received) {
        require(received.error().code != ErrorCode::malformed);
        return;
      }
      message = std::move(*received);
    }
    require((message.descriptor >= 0) == has_descriptor(message));
    note(worker, message);
    close_if_open(message.descriptor);
  }
}

// Only a worker with an open request gets an answer, and only one.
void FakeWorkers::answered(std::multiset<uint64_t>& requests, uint64_t request) {
  const auto asked = requests.find(request);
  require(asked != requests.end());
  requests.erase(asked);
}

void FakeWorkers::note(FakeWorker& worker, const ControlMessage& message) {
  switch (message.kind) {
    case ControlKind::session: {
      const auto session = message.body<packet::Session>();
      require(worker.session == 0 && session.number != 0);
      worker.session = session.number;
      worker.session_id.assign(session.id.data(), session.id.size());
      worker.bulk_token.assign(session.bulk_token.data(), session.bulk_token.size());
      worker.resume_key.assign(session.resume_key.data(), session.resume_key.size());
      return;
    }
    case ControlKind::resume:
      ++worker.resumed;
      return require(worker.session != 0 && message.body<packet::Resume>().link <= wire::kMaxBulkConnections);
    case ControlKind::image_found:
      return require(server::is_sealed_file(message.descriptor, message.body<packet::ImageQuestion>().bytes));
    case ControlKind::image_space: {
      const auto image = message.body<packet::ImageQuestion>();
      close_if_open(worker.image_space);
      worker.image_space = ::fcntl(message.descriptor, F_DUPFD_CLOEXEC, 0);
      worker.image_name = image.name;
      worker.image_bytes = image.bytes;
      return;
    }
    case ControlKind::share_wanted:
      worker.share_wanted = message.body<packet::ShareWanted>();
      return require(worker.share_wanted.session == worker.session &&
                     worker.share_wanted.requester != worker.session);
    case ControlKind::share_found:
      return answered(worker.share_requests, message.body<packet::ShareFound>().request);
    case ControlKind::share_missing:
      return answered(worker.share_requests, message.body<packet::ShareMissing>().request);
    case ControlKind::reclaimed: return answered(worker.reclaims, message.body<packet::Reclaimed>().question);
    case ControlKind::change_state:
      worker.state_question = message.body<packet::ChangeState>().question;
      return;
    case ControlKind::dump_wanted:
      worker.dump_question = message.body<packet::DumpQuestion>().question;
      return;
    case ControlKind::migrate:
      worker.migration = message.body<packet::Migrate>().number;
      return require(worker.migration != 0 && !message.payload.empty());
    case ControlKind::account:
    case ControlKind::bulk:
    case ControlKind::end_session:
    case ControlKind::move_out:
    case ControlKind::room_patience:
    case ControlKind::image_missing:
    case ControlKind::image_unwanted:
    case ControlKind::peer_missing:
    case ControlKind::stop_locking: return;
    default: std::abort();
  }
}

void FakeWorkers::fill_image(FakeWorker& worker, bool sealed) {
  if (worker.image_space < 0) return;
  const std::string bytes(worker.image_bytes, 'i');
  const bool filled =
      sealed
          ? server::fill_image_file(worker.image_space, std::as_bytes(std::span(bytes))).ok()
          : ::pwrite(worker.image_space, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
  require(filled);
  close_if_open(worker.image_space);
}

int next_descriptor() {
  const int lowest = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  ::close(lowest);
  return lowest;
}

}  // namespace gpupool::fuzz
