#include "tests/client/fake_device.h"

#include <cstdlib>
#include <cstring>

#include "client/streams/cross_server.h"

namespace gpupool::client {
namespace test {

FakeDevice& fake_device() {
  static FakeDevice* const only = new FakeDevice;
  return *only;
}

void reset(uint64_t base, size_t bytes) {
  fake_device() = FakeDevice{};
  fake_device().base = base;
  fake_device().memory.resize(bytes);
}

Session& no_session(size_t number) {
  alignas(Session) static std::byte storage[4][sizeof(Session)];
  return *reinterpret_cast<Session*>(storage[number]);
}

Context& make_context(size_t session) {
  auto object = std::make_unique<Context>();
  Context& context = *object;
  context.session = &no_session(session);
  if (handles().mint(Kind::context, std::move(object)) == 0) std::abort();
  return context;
}

}  // namespace test

using test::fake_device;

CUresult copy_to_device(Session&, Context&, CUstream, uint64_t to, const void* from, const Rows& rows,
                        CopyOrder order, Source, Lane) {
  fake_device().copies.push_back({true, to, rows.width, order});
  if (fake_device().result == CUDA_SUCCESS) std::memcpy(&fake_device().at(to), from, rows.width);
  return fake_device().result;
}

CUresult push_to_device(Context&, uint64_t to, const void* from, uint64_t bytes) {
  fake_device().copies.push_back({true, to, bytes, CopyOrder::before_all});
  if (fake_device().result == CUDA_SUCCESS) std::memcpy(&fake_device().at(to), from, bytes);
  return fake_device().result;
}

CUresult copy_from_device(Session&, Context&, CUstream, void* to, uint64_t from, const Rows& rows, bool) {
  fake_device().copies.push_back({false, from, rows.width, CopyOrder::in_stream});
  if (fake_device().result == CUDA_SUCCESS) std::memcpy(to, &fake_device().at(from), rows.width);
  return fake_device().result;
}

CUresult internal_stream(Context&, CUstream* stream) {
  *stream = cuda::handle_from_bits<CUstream>(cuda::make_handle(Kind::stream, 1, 999));
  return CUDA_SUCCESS;
}

CUresult synchronize_stream(Context&, CUstream) {
  return ++fake_device().waits, CUDA_SUCCESS;
}
CUresult synchronize_context(Context& context) {
  context.completed_mirror_use = context.last_mirror_use.load();
  return ++fake_device().waits, CUDA_SUCCESS;
}

const Devices& devices() {
  static const Devices* const none = new Devices;
  return *none;
}

}  // namespace gpupool::client
