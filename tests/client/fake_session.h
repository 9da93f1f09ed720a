// A session of the client library with a FakeWorker, and a context in it. For tests of code that sends
// commands. Never destroyed, as in a program, because a session's threads may still use it; the worker ends
// with the object that owns it.
#pragma once
#include <memory>
#include <stdexcept>

#include "client/session/session.h"
#include "tests/support/fake_worker.h"

namespace gpupool::client::test {

// Settings for tests: plain TCP, no bulk connections, and time-outs that only a hung test reaches.
inline Settings test_settings() {
  Settings settings;
  settings.carrier = Carrier::tcp;
  settings.shared_memory = false;
  settings.bulk_connections = 0;
  settings.compression = compression::Policy::off;
  settings.connect_timeout = settings.dead_peer_timeout = std::chrono::seconds(30);
  return settings;
}

// Opens a session and takes the offered addresses. Throws if that fails.
inline Session& open_session(const testing::FakeWorker& worker, Settings settings = test_settings()) {
  settings.server = worker.url();
  auto opened = Session::open(settings, worker.endpoint());
  if (!opened) throw std::runtime_error(opened.error().message);
  Session& session = *opened->release();
  if (auto taken = session.take_addresses(); !taken) throw std::runtime_error(taken.error().message);
  return session;
}

// Returns a context of a new device 0 of the session. It exists on the server, so that no command creates it.
inline Context& make_context(Session& session) {
  auto* const device = new Device;
  device->session = &session;
  auto object = std::make_unique<Context>();
  Context& context = *object;
  context.device = device;
  context.on_server = true;
  if (session.mint(Kind::context, std::move(object)) == 0)
    throw std::runtime_error("the handle table is full");
  return context;
}

}  // namespace gpupool::client::test
