// The client's code on the device, from uploaded images to loaded modules. Executor's thread.
#pragma once
#include "server/worker/images/cached_images.h"
#include "server/worker/images/images.h"
#include "server/worker/images/linkers.h"
#include "server/worker/images/postponed_unloads.h"
#include "server/worker/images/uploads.h"
#include "server/worker/session/session_start.h"

namespace gpupool::worker {

struct Code {
  Code(const DeviceApi& api, const SessionStart& start)
      : uploads(start.usage),
        cached_images(start.control, start.image_nonce, start.largest_image),
        images(api),
        linkers(api) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  PostponedUnloads postponed_unloads;
  Uploads uploads;
  CachedImages cached_images;
  Images images;
  Linkers linkers;
};

}  // namespace gpupool::worker
