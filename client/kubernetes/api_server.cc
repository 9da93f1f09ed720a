#include "client/kubernetes/api_server.h"

#include <curl/curl.h>

#include <fstream>
#include <memory>
#include <utility>

namespace gpupool::kubernetes {
namespace {

constexpr long kTimeoutSeconds = 10;
constexpr size_t kMostReplyBytes = 64u << 20;
constexpr const char* kPage = "limit=500";

struct Received {
  std::string text;
  bool too_large = false;
};

size_t receive(char* data, size_t, size_t size, void* to) {
  auto& received = *static_cast<Received*>(to);
  if (received.text.size() + size > kMostReplyBytes) {
    received.too_large = true;
    return 0;
  }
  received.text.append(data, size);
  return size;
}

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

}  // namespace

bool ApiServer::Reply::says_missing(const std::string& resource, const std::string& name) const {
  return status == 404 && text_member(body, {"kind"}) == "Status" &&
         text_member(body, {"details", "kind"}) == resource && text_member(body, {"details", "name"}) == name;
}

std::string ApiServer::Reply::reason() const {
  const std::string message = text_member(body, {"message"});
  return message.empty() ? "HTTP status " + std::to_string(status) : message;
}

ApiServer::ApiServer(Settings settings) : settings_(std::move(settings)) {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)initialized;
  while (settings_.url.ends_with("/")) settings_.url.pop_back();
}

Result<ApiServer::Reply> ApiServer::get(const std::string& path) const {
  return call("GET", path, "");
}

Result<ApiServer::Reply> ApiServer::send(const char* method, const std::string& path,
                                         const Json& body) const {
  return call(method, path, body.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Result<ApiServer::Reply> ApiServer::remove(const std::string& path) const {
  return call("DELETE", path, "");
}

Result<Json> ApiServer::list(const std::string& path) const {
  Json items = Json::array();
  const std::string first = path + (path.find('?') == std::string::npos ? "?" : "&") + kPage;
  for (std::string next = first; !next.empty();) {
    const auto reply = get(next);
    if (!reply) return reply.error();
    if (!reply->succeeded())
      return Error{ErrorCode::refused, "the API server refuses to list " + path + ": " + reply->reason()};
    const Json& page = member(reply->body, {"items"});
    if (page.is_array()) items.insert(items.end(), page.begin(), page.end());
    const std::string more = text_member(reply->body, {"metadata", "continue"});
    next = more.empty() ? "" : first + "&continue=" + escaped(more);
  }
  return items;
}

Result<ApiServer::Reply> ApiServer::call(const char* method, const std::string& path,
                                         const std::string& body) const {
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  if (!curl) return Error{ErrorCode::unavailable, "cannot start an HTTP request: out of memory"};
  curl_slist* lines = curl_slist_append(nullptr, "Accept: application/json");
  lines = curl_slist_append(lines, "Expect:");  // send the body at once
  const std::string type = method == std::string("PATCH") ? "merge-patch+json" : "json";
  if (!body.empty()) lines = curl_slist_append(lines, ("Content-Type: application/" + type).c_str());
  if (!settings_.token_file.empty()) {
    lines = curl_slist_append(lines, ("Authorization: Bearer " + first_line(settings_.token_file)).c_str());
  }
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(lines, curl_slist_free_all);
  Received received;
  const std::string url = settings_.url + path;
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_CUSTOMREQUEST, method);
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);  // threads
  curl_easy_setopt(curl.get(), CURLOPT_NOPROXY, "*");  // a proxy would see the token
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, kTimeoutSeconds);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, receive);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &received);
  if (!settings_.ca_file.empty()) curl_easy_setopt(curl.get(), CURLOPT_CAINFO, settings_.ca_file.c_str());
  if (!body.empty()) {
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.c_str());
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  }
  const auto failed = [&](const std::string& why) {
    return Error{ErrorCode::unavailable, "cannot ask the API server " + settings_.url + ": " + why};
  };
  if (const CURLcode code = curl_easy_perform(curl.get()); code != CURLE_OK)
    return failed(received.too_large ? "its answer is larger than 64 MiB" : curl_easy_strerror(code));
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  Reply reply{static_cast<int>(status), Json::parse(received.text, nullptr, false)};
  if (reply.body.is_discarded()) reply.body = Json();
  if (reply.succeeded() && !reply.body.is_object()) return failed("its answer is not JSON");
  return reply;
}

std::string escaped(const std::string& text) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.')
      out += c;
    else
      out.append("%").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
  }
  return out;
}

const Json& member(const Json& object, std::initializer_list<const char*> path) {
  static const Json none;
  const Json* at = &object;
  for (const char* const name : path) {
    if (!at->is_object()) return none;
    const auto found = at->find(name);
    if (found == at->end()) return none;
    at = &*found;
  }
  return *at;
}

std::string text_member(const Json& object, std::initializer_list<const char*> path) {
  const Json& text = member(object, path);
  return text.is_string() ? text.get<std::string>() : "";
}

}  // namespace gpupool::kubernetes
