// A session on the fake driver of a tenant with limited memory.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "protocol/images/fatbin.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/images.h"
#include "server/quota/accounts.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

namespace gpupool::worker::test {

// One session of a tenant with a memory limit of `limit` bytes.
struct Limited {
  static constexpr uint64_t kPage = FakeDriver::kGranularity;
  explicit Limited(uint64_t limit, const std::function<void(FakeDriver&)>& prepare = {}) {
    REQUIRE(accounts.set("t", {.each = {.memory_bytes = limit}}));
    place = std::move(*accounts.take("t"));
    page = *quota::SharedPage<quota::SessionPage>::create("session");
    client.emplace(false, nullptr, 0, false, nullptr, false, Usage{page, *accounts.of("t"), place->slot()},
                   prepare);
    client->retain();
  }
  uint64_t used() { return (**accounts.of("t"))->sessions[place->slot()].memory_used[0]; }
  CUresult map(uint64_t at, uint64_t pages) {
    return client->ask(wire::Command::map_memory,
                       bytes_of(wire::MapMemory{client->address(at * kPage), pages * kPage, 0, 0}));
  }
  void free(uint64_t at, uint64_t pages) {
    client->send(wire::Command::free_memory,
                 bytes_of(wire::FreeMemory{client->address(at * kPage), pages * kPage, wire::kAllStreams}));
  }
  CUresult create(uint64_t handle, uint64_t pages) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return client->ask("cuMemCreate",
                       bytes_of(handle, uint64_t{pages * kPage}, uint8_t{1}, properties, uint64_t{0}));
  }
  CUresult load(uint64_t handle, const std::string& ptx, uint64_t context = kContext) {
    const std::string image = ".version 8.0\n.target sm_80\n.address_size 64\n" + ptx;
    cuda::Bytes bundle;
    REQUIRE(cuda::bundle({std::as_bytes(std::span(image.c_str(), image.size() + 1)), {}}, bundle) ==
            CUDA_SUCCESS);
    constexpr uint64_t kUpload = cuda::make_handle(cuda::Kind::upload, 1, 302);
    wire::Buffer part = bytes_of(wire::UploadPart{kUpload, bundle.view().size()});
    part.insert(part.end(), bundle.view().begin(), bundle.view().end());
    client->send(wire::Command::upload_part, part);
    return client->result(
        client->send(wire::Command::load_module, bytes_of(wire::LoadImage{handle, kUpload}), true, context));
  }
  CUresult get_function(uint64_t handle, uint64_t module, const std::string& name,
                        uint64_t context = kContext) {
    auto get = bytes_of(wire::GetFunction{handle, module});
    wire::Writer(get).put_text(name);
    return client->result(client->send(wire::Command::get_function, get, true, context));
  }
  CUresult set_limit(CUlimit limit, uint64_t value) {
    return client->ask("cuCtxSetLimit", bytes_of(limit, value));
  }
  size_t refused() { return (*page)->over_quota; }

  quota::Accounts accounts;
  std::unique_ptr<quota::Accounts::Place> place;
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
  std::optional<TestClient> client;
};

}  // namespace gpupool::worker::test
