#include "server/poold/workers/image_transfers.h"

#include <algorithm>
#include <utility>

#include "server/handover/sealed_file.h"
#include "server/poold/upgrade/values.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {

ImageTransfers::~ImageTransfers() {
  for (const auto& [session, transfer] : transfers_) close_without_blocking(transfer.file);
}

bool ImageTransfers::wanted(Worker& worker, const packet::ImageQuestion& wanted) {
  const int image = images_.find(wanted.name, wanted.bytes, worker.session);
  if (image >= 0) transfers_[worker.session].sent = wanted.name;
  return workers_.check_sent(
      worker, image >= 0 ? send_control<ControlKind::image_found>(worker.socket(), wanted, "", image)
                         : send_control<ControlKind::image_missing>(worker.socket(), wanted));
}

bool ImageTransfers::damaged(Worker& worker, const packet::Image& image) {
  const auto known = transfers_.find(worker.session);
  if (image.name != (known == transfers_.end() ? wire::ImageDigest{} : known->second.sent))
    return workers_.end(worker, "invalid control message");
  images_.drop_damaged(image.name, image.bytes, worker.session);
  return true;
}

bool ImageTransfers::offered(Worker& worker, const packet::ImageQuestion& offered) {
  Transfer& space = transfers_[worker.session];
  close_without_blocking(std::exchange(space.file, -1));
  if (images_.wants(offered.name, offered.bytes)) {
    if (const auto file = make_image_file(offered.bytes)) {
      space.name = offered.name;
      space.bytes = offered.bytes;
      space.file = *file;
    }
  }
  return workers_.check_sent(
      worker, space.file >= 0
                  ? send_control<ControlKind::image_space>(worker.socket(), offered, "", space.file)
                  : send_control<ControlKind::image_unwanted>(worker.socket(), offered));
}

bool ImageTransfers::deposited(Worker& worker, const packet::Image& deposit) {
  Transfer& space = transfers_[worker.session];
  if (space.file < 0 || deposit.name != space.name || deposit.bytes != space.bytes) {
    return workers_.end(worker, "it deposited an image that it did not offer");
  }
  const auto added = images_.add(space.name, space.bytes, std::exchange(space.file, -1), worker.session);
  return added || workers_.end(worker, added.error().message);
}

bool ImageTransfers::awaits_deposit(const Worker& worker) const {
  const auto transfer = transfers_.find(worker.session);
  return transfer != transfers_.end() && transfer->second.file >= 0;
}

void ImageTransfers::session_ended(const Worker& worker) {
  const auto transfer = transfers_.find(worker.session);
  if (transfer == transfers_.end()) return;
  close_without_blocking(transfer->second.file);
  transfers_.erase(transfer);
}

void ImageTransfers::save(uint64_t session, upgrade::Session& to) const {
  const auto known = transfers_.find(session);
  if (known == transfers_.end()) return;
  const Transfer& transfer = known->second;
  to.set_sent_image(transfer.sent.data(), transfer.sent.size());
  if (transfer.file < 0) return;
  to.mutable_deposit()->set_name(transfer.name.data(), transfer.name.size());
  to.mutable_deposit()->set_bytes(transfer.bytes);
  to.mutable_deposit()->set_file(transfer.file);
}

void ImageTransfers::restore(uint64_t session, const upgrade::Session& from) {
  if (from.sent_image().empty()) return;
  Transfer& transfer = transfers_[session];
  upgrade::copy_bytes(from.sent_image(), transfer.sent);
  if (!from.has_deposit()) return;
  upgrade::copy_bytes(from.deposit().name(), transfer.name);
  transfer.bytes = from.deposit().bytes();
  transfer.file = from.deposit().file();
}

}  // namespace gpupool::server
