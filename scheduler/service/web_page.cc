#include "scheduler/service/web_page.h"

#include "common/admission/peer.h"
#include "common/text/printable.h"
#include "scheduler/service/admin.h"
#include "scheduler/web/assets.h"
#include "scheduler/web/page.h"

namespace gpupool::scheduler {
namespace {

constexpr const char* kState = "/pool.json";
constexpr const char* kHistory = "/history.json";
constexpr const char* kEvents = "/events.json";
constexpr const char* kJsonType = "application/json";

bool is_protected(const std::string& path) {
  return path == kState || path == kHistory || path == kEvents;
}

}  // namespace

WebPage::WebPage(Engine& engine, std::vector<std::string> hosts)
    : engine_(engine), hosts_(std::move(hosts)), timer_(engine.context()) {}

void WebPage::start() {
  engine_.observe([this](const Note& note, int64_t at_ms) {
    pool::Events::Fields fields;
    for (const auto& [key, value] : note.fields) fields.emplace_back(key, printable(value));
    events_.note(at_ms, note.event, std::move(fields));
  });
  note_history();
}

std::optional<HttpResponse> WebPage::answer(const std::string& path) {
  if (const pool::Asset* const asset = pool::find_asset(path))
    return HttpResponse{200, std::string(asset->body), std::string(asset->type)};
  if (!is_protected(path)) return std::nullopt;
  if (!engine_.leads()) return HttpResponse{503, "this scheduler is not the leader\n"};
  if (path == kHistory) return HttpResponse{200, json_text(history_.json()), kJsonType};
  if (path == kEvents) return HttpResponse{200, json_text(events_.json()), kJsonType};
  const pool::PoolSnapshot snapshot = noted_snapshot();
  return HttpResponse{200, pool::page_json(snapshot, utilization_), kJsonType};
}

std::optional<HttpResponse> WebPage::refuse(const HttpRequest& request, const std::string& peer) {
  if (!is_protected(request.path)) return std::nullopt;
  if (!engine_.callers().has_tokens()) {
    if (request.host.empty() || is_allowed_host(request.host, hosts_)) return std::nullopt;
    return HttpResponse{
        421,
        "Host must be localhost, a numeric address or a name of --web-host: otherwise pages of other "
        "sites could read this one by DNS rebinding\n"};
  }
  const std::string token = gpupool::bearer_token(request.authorization);
  const auto checked = engine_.callers().check(token, Role::operator_);
  if (checked) return std::nullopt;
  const bool is_unknown = checked.error().code == ErrorCode::refused;
  // The page asks without a token first, to find out whether it needs one.
  if (!token.empty()) {
    const auto code = is_unknown ? grpc::StatusCode::UNAUTHENTICATED : grpc::StatusCode::PERMISSION_DENIED;
    engine_.auth_failures().note(peer_of(peer), {code, checked.error().message});
  }
  return HttpResponse{is_unknown ? 401 : 403, checked.error().message + "\n"};
}

pool::PoolSnapshot WebPage::noted_snapshot() {
  pool::PoolSnapshot snapshot = take_snapshot(engine_);
  utilization_.note(snapshot);
  history_.note(snapshot, utilization_.total_milli());
  return snapshot;
}

void WebPage::note_history() {
  if (engine_.leads()) noted_snapshot();
  timer_.expires_after(std::chrono::milliseconds(pool::History::kSampleMs));
  timer_.async_wait([this](const asio::error_code& status) {
    if (!status) note_history();
  });
}

}  // namespace gpupool::scheduler
